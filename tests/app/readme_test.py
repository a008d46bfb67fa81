# SPDX-License-Identifier: Apache-2.0
"""The commands that the README and docs/ show, run (what is marked as runnable: guide_test.py): each stands in the
table below with how it is run here, or with the reason why it is not. A command without an entry fails the test, and
so does an entry without a command."""
import pathlib
import re
import unittest

import program
from documents import DocumentTest

DOCUMENTS = ["README.md", *sorted(f"docs/{p.name}" for p in pathlib.Path(program.SOURCE, "docs").glob("*.md"))]
COMMAND = re.compile(r"^(?:p3d|mpiexec|srun|sbatch|cmake|apt-get|scripts/|benchmarks/|ctest|spack|python3)\b.*")

# What makes a run of a shipped input quick. The data are a file of the source tree.
QUICK = ("run.steps=2 run.eval_every=0 run.eval_batches=1 sample.tokens=4 run.log_every=1 run.ceiling=false "
         "data.path={source}/LICENSE")
TINY = "inputs/gpt2-tiny.toml parallel.pp=4"

# Command as shown: (arguments added here, files that it must have written). In their order: one may need what another
# has written.
RUN = {
    "p3d --check inputs/llama3-8b.toml --ranks 64": ("data.path={source}/LICENSE", ()),
    "mpiexec -n 8 p3d inputs/quickstart.toml": (QUICK, ("runs/quickstart/metrics.csv",)),
    "mpiexec -n 4 p3d inputs/quickstart.toml parallel.dp=1 run.name=four": (
        QUICK + " run.output_dir=again", ("again/metrics.csv",)),
    "p3d mesh inputs/quickstart.toml --ranks 8 --rank 5": ("", ()),
    "p3d --help-input": ("", ()),
    "p3d checkpoint ls FOLDER": ("", ()),
    "p3d checkpoint show FILE": ("", ()),
    "p3d checkpoint verify FILE": ("", ()),
    "p3d checkpoint diff FILE OTHER": ("", ()),
    "p3d checkpoint prune FOLDER --keep 2": ("", ()),
    "p3d generate FILE --prompt \"This licence\" --tokens 200 --temperature 0.8 --top-p 0.9": ("", ()),
    "mpiexec -n 4 p3d generate FILE parallel.tp=2 parallel.pp=2": ("--tokens 4", ()),
    "p3d eval FILE --file text.txt": ("", ()),
    "p3d report runs/quickstart": ("", ("report.html",)),
    "p3d report runs/quickstart again --out compare.html": ("", ("compare.html",)),
    "p3d tokenizer train text.txt --vocab-size 1000 --special \"<|endoftext|>\" --out tokenizer.json": (
        "", ("tokenizer.json",)),
    "p3d data tokenize text.txt --tokenizer tokenizer.json --out tokens": ("", ("tokens.bin", "tokens.idx")),
    "p3d data show tokens": ("", ()),
    "p3d data head tokens --tokenizer tokenizer.json": ("", ()),
    "p3d data check tokens": ("", ()),
    "p3d data stats tokens": ("", ()),
    "p3d import --list": ("", ()),
    "p3d import MODEL model.h5": ("", ("model.h5",)),
    "p3d export FILE model": ("", ("model/model.safetensors",)),
    "mpiexec -n 2 p3d input.toml model.load=MODEL": ("run.steps=2", ("loaded/metrics.csv",)),
    f"p3d schedule show {TINY} --svg now.svg --csv mine.csv": ("", ("now.svg", "mine.csv")),
    f"p3d schedule check {TINY} pipeline.schedule=file pipeline.file=mine.csv": ("", ()),
    "p3d schedule simulate inputs/llama3-8b.toml --ranks 64 --flops 1e14 --bandwidth 2.5e10": (
        "data.path={source}/LICENSE", ()),
    f"p3d schedule compare {TINY} --unit --svg all.svg": ("", ("all.svg",)),
    "mpiexec -n 4 p3d inputs/gpt2-tiny.toml parallel.layout=auto plan.cluster=inputs/clusters/epyc.toml": (
        QUICK + " run.output_dir=chosen", ("chosen/metrics.csv",)),
    f"mpiexec -n 4 p3d {TINY} run.trace=true": (
        QUICK + " run.steps=4 run.output_dir=traced",
        tuple(f"traced/{name}" for name in ("trace.svg", "trace.json", "costs.csv"))),
}
NOT_RUN = {
    r"python3 docs/write_checkpoint": "restart_h5py runs it",
    r"python3 tests/fuzz/combinations": "fuzz_combinations runs a part of it; all of it takes hours",
    r"scripts/|benchmarks/|ctest": "a build or a benchmark: minutes",
    r"cmake|apt-get|spack": "installs or builds",
    r"srun|sbatch": "needs Slurm: tests/slurm runs the recipes",
}


def shown_commands():
    """{command: where} of the code blocks, without the remarks after them."""
    found = {}
    for document in DOCUMENTS:
        inside, marked, before = False, False, ""
        for number, line in enumerate((program.SOURCE / document).read_text().splitlines(), 1):
            if line.startswith("```"):
                inside = not inside
                marked = inside and before.startswith("<!-- ")
            before = line
            if inside and not marked and COMMAND.match(line):
                text, _, remark = line.partition(" #")
                found.setdefault(" ".join(text.rstrip("\\").split()), f"{document}:{number}")
                also = re.search(r"also: (mpiexec .*)$", remark)
                if also:
                    found.setdefault(also[1].strip(), f"{document}:{number}")
    return found


class Readme(DocumentTest):
    def test_every_command_has_an_entry(self):
        shown = shown_commands()
        self.assertGreaterEqual(len(shown), len(RUN))
        for command, where in shown.items():
            known = command in RUN or any(re.match(pattern, command) for pattern in NOT_RUN)
            self.assertTrue(known, f"{where}: no entry in tests/app/readme_test.py for: {command}")
        for command in RUN:
            self.assertIn(command, shown, "an entry without a command")

    def test_commands(self):
        quick = QUICK.format(source=program.SOURCE)
        (self.folder / "text.txt").write_text((program.SOURCE / "LICENSE").read_text())
        (self.folder / "input.toml").write_text('[run]\noutput_dir = "loaded"\n[data]\npath = "LICENSE"\n'
                                                "[parallel]\ndp = 2\n")
        made = self.shell(f"p3d inputs/quickstart.toml {quick} run.name=made checkpoint.every=1 checkpoint.keep=0 "
                          "parallel.dp=1 parallel.tp=1 parallel.pp=1")
        self.assertEqual(made.returncode, 0, made.stdout)
        folder = "runs/made/checkpoints"
        other, file = (f"{folder}/made-0000000{step}.h5" for step in (1, 2))
        for command, (more, files) in RUN.items():
            words = f"{command} {more}".format(source=program.SOURCE)
            for name, path in (("FILE", file), ("OTHER", other), ("FOLDER", folder),
                               ("MODEL", f"{program.SOURCE}/tests/golden/hugging_face/gpt2")):
                words = words.replace(name, path)
            with self.subTest(command=command):
                for name in files:
                    (self.folder / name).unlink(missing_ok=True)
                done = self.shell(words)
                differ = "checkpoint diff" in words
                self.assertEqual(done.returncode, 1 if differ else 0, f"{words}\n{done.stdout}")
                self.assertNotIn("p3d stops", done.stdout)
                for name in files:
                    self.assertTrue((self.folder / name).is_file(), f"{words} wrote no {name}")


if __name__ == "__main__":
    unittest.main()
