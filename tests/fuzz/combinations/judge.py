# SPDX-License-Identifier: Apache-2.0
"""Runs a case and judges it: accepted and right, refused with reason, or failed.

    refused     --check says no: exit code 2, a message with key, expected, found and fix
    accepted    --check says yes, the run ends with 0, and everything agrees with the reference and the twin

A failure has a kind, which shrinking keeps:

    check       --check and the run do not agree          message    a refusal without key or fix
    crash       a signal, or another exit code than 0     defect     the program calls itself defective
    hang        comm.timeout_s passed, or all time        wrong      numbers are not those of one rank in fp64
    bits        numbers are not those of the plain twin   repeat     nor those of the same command again
    choices     experts' choices do not add up            state      arrays of the last checkpoint differ
    resume, eval, generate, export                        the act was refused, failed, or gave something else
    reference   the same input on one rank did not run    harness    an error in these scripts
"""
import hashlib
import json
import re
import shutil

import compare
import meaning
import spread
from cases import ranks, words
from draw import Draw
from starts import Record

DEFECT = re.compile(r"defect|please report|terminate called|Assertion|what\(\):|std::\w+|Segmentation|not implemented")
KEY = re.compile(r"\b(run|model|parallel|context|batch|pipeline|data|optimizer|comm|precision|linalg|memory|sample|"
                 r"checkpoint)\.[a-z_.]+")
PARTS = ("expected:", "found:", "fix:")
MOST_REFERENCES = 100  # on the disk at the same time
# What a checkpoint of a run without validation split, or of few tokens, cannot do, and p3d says so.
NEEDS_TEXT = ("with a validation split", "of at least 256 tokens")
# Why an act's own layout does not fit the model.
NEEDS_SIZES = ("divisible by parallel.", "for each pipeline stage", "for each rank of")


class Failure:
    """`stage`: what was being done: "run", "twin", "repeat" or an act."""

    def __init__(self, kind, text, lines, stage="run"):
        self.kind, self.text, self.lines, self.stage = kind, text, lines, stage

    def same(self, other):
        return other is not None and (self.kind, self.stage) == (other.kind, other.stage)

    def __str__(self):
        return f"{self.kind}: {self.text}"


class Failed(Exception):
    def __init__(self, kind, text, *results):
        super().__init__(text)
        self.failure = Failure(kind, text, [result.line for result in results])


class Refused(Exception):
    """--check said no, and said why."""


class Verdict:
    """`left_out`: comparisons that were not made, and why."""

    def __init__(self, status, failure=None, left_out=()):
        self.status, self.failure, self.left_out = status, failure, list(left_out)


class Judge:
    """Keeps the references it made, by their keys, in the starter's folder."""

    def __init__(self, starter, name="work"):
        self.starter, self.name = starter, name
        self.references = {}
        self.made = 0
        self.stage = "run"
        self.before = []    # commands that made files of the present case
        self.left_out = []  # what was not compared in the present case
        self.rounding = False  # the present case is far from fp64 by rounding alone

    def judge(self, case, only=None):
        """`only`: a stage in which the case failed; the others are left out."""
        self.made += 1
        self.stage, self.before, self.left_out, self.rounding = "run", [], [], False
        here = f"{self.name}/{self.made}"
        try:
            self.examine(case, here, only)
            return Verdict("accepted", left_out=self.left_out)
        except Refused:
            return Verdict("refused")
        except Failed as failed:
            failed.failure.stage = self.stage
            failed.failure.lines = [*self.before, *failed.failure.lines]
            return Verdict("failed", failed.failure, self.left_out)
        finally:
            shutil.rmtree(self.starter.folder / here, ignore_errors=True)

    # The steps of a case.

    def enter(self, stage, only):
        self.stage = stage
        return only in (None, stage)

    def examine(self, case, here, only):
        keys = self.prepared(case, here)
        self.check(keys, case)
        result, record = self.train(keys, f"{here}/run")
        plain, reference = self.reference(keys)
        if result.code == 4 or plain.code == 4:  # the loss became NaN: on one rank too
            if result.code != plain.code:
                raise Failed("wrong", f"exit code {result.code}, of one rank {plain.code}", result, plain)
            return
        if only in (None, "run"):
            self.compare_with_reference(keys, result, record, plain, reference)
        if self.enter("twin", only):
            self.compare_with_twin(keys, result, record, here)
        if case.act("repeat") and self.enter("repeat", only):
            again, second = self.train(keys, f"{here}/again")
            if text := compare.bits(record, second):
                raise Failed("repeat", text, result, again)
        if case.act("resume") and self.enter("resume", only):
            self.resume(case, keys, result, record, reference, here)
        for name in ("eval", "generate", "export"):
            if case.act(name) and self.enter(name, only):
                self.after(name, case, keys, result, record, reference, here)

    def prepared(self, case, here):
        """The keys of the case, with the files that its acts make."""
        keys = case.keys
        (self.starter.folder / here).mkdir(parents=True)
        if keys.get("checkpoint.resume") == "@weights":
            model = {key: value for key, value in keys.items() if key.startswith("model.")}
            first, record = self.plain({**model, "run.seed": "99", "run.steps": "1", "run.precision": "fp64"})
            self.before.append(first.line)
            if first.code == 2:
                raise Refused(first.out)
            if record.last_checkpoint() is None:
                raise Failed("reference", f"exit code {first.code}\n{first.out[-1500:]}", first)
            keys["checkpoint.resume"] = str(record.last_checkpoint().relative_to(self.starter.folder))
        if shape := case.act("schedule"):
            keys["pipeline.file"] = f"{here}/schedule.csv"
            self.make_schedule(keys, shape)
        return keys

    def make_schedule(self, keys, shape):
        plain = {key: value for key, value in keys.items() if key != "pipeline.file"}
        plain["pipeline.schedule"] = shape
        done = self.starter.run(["schedule", "show", "--ranks", ranks(plain), "--csv", keys["pipeline.file"],
                                 *words(self.starter.complete(plain))])
        self.before.append(done.line)
        self.require_refusal(done, "message")
        if done.code != 0:
            raise Refused(done.out)

    def check(self, keys, case):
        said = self.starter.check(keys)
        self.require_refusal(said, "message")
        if said.code == 0:
            return
        # One refused input in ten is started as well.
        if Draw("refused", case.seed, len(case.items)).below(10) == 0:
            started = self.starter.train(keys, f"{self.name}/refused")
            shutil.rmtree(self.starter.folder / self.name / "refused", ignore_errors=True)
            if started.code != 2:
                raise Failed("check", f"--check refuses it, the run ends with {started.code}", said, started)
        raise Refused(said.out)

    def require_refusal(self, said, kind):
        """The command ended with 0 or 4, or with 2 and a message that names key and fix."""
        if said.code is None or said.code == 3:
            raise Failed("hang", f"exit code {said.code} after {said.seconds:.0f} s\n{said.out[-1500:]}", said)
        if said.code in (0, 4):
            return
        if DEFECT.search(said.out):
            raise Failed("defect", said.out[-1500:], said)
        if said.code != 2:
            raise Failed("crash", f"exit code {said.code}\n{said.out[-1500:]}", said)
        missing = [part for part in PARTS if part not in said.out]
        if missing or not KEY.search(said.out):
            raise Failed(kind, f"without {' '.join(missing) or 'a key'}\n{said.out[-1500:]}", said)

    def train(self, keys, output):
        result = self.starter.train(keys, output)
        self.require_refusal(result, "message")
        if result.code == 2:
            raise Failed("check", f"--check accepts it, the run is refused\n{result.out[-1500:]}", result)
        return result, Record(self.starter.folder / output, result.out)

    # References.

    def plain(self, keys):
        """A run on one rank with checkpoints of every step; made once."""
        name = hashlib.sha256(json.dumps(sorted(keys.items())).encode()).hexdigest()[:16]
        if name not in self.references:
            every = {} if "checkpoint.every" in keys else {"checkpoint.every": "1", "checkpoint.keep": "0"}
            output = f"{self.name}/references/{name}"
            shutil.rmtree(self.starter.folder / output, ignore_errors=True)
            result = self.starter.train({**keys, **every}, output)
            if len(self.references) >= MOST_REFERENCES:
                oldest = next(iter(self.references))
                shutil.rmtree(self.references.pop(oldest)[1].folder, ignore_errors=True)
            self.references[name] = result, Record(self.starter.folder / output, result.out)
        return self.references[name]

    def reference(self, keys):
        result, record = self.plain(meaning.reference(keys))
        if result.code not in (0, 4):
            raise Failed("reference", f"exit code {result.code}\n{result.out[-1500:]}", result)
        return result, record

    def compare_with_reference(self, keys, result, record, plain, reference):
        losses, norms = meaning.tolerances(keys)
        exact = keys.get("run.precision", "fp64") == "fp64"
        text = ""
        if record.summary.get("skipped_steps", 0):
            self.left_out.append("reference: fp16 skipped a step")
        else:
            text = compare.rows(reference, record, losses, norms)
            if text and meaning.has_16_bits(keys) and self.is_rounding(keys):
                text = ""
        if not text and exact:
            text = compare.experts(reference, record) or compare.samples(reference, record)
        if not text and int(keys.get("sample.tokens", 0)) > 0 and record.sample is None:
            text = "a sample: expected one at the end, found none"
        if text:
            raise Failed("wrong", text, result, plain)
        if text := compare.choices(record):
            raise Failed("choices", text, result)
        if exact and record.last_checkpoint() is not None:
            self.compare_states("state", record, reference, 1e-9, result, plain)

    def is_rounding(self, keys):
        """Whether the case with other seeds is as near to fp64 as one rank with its precision."""
        case, single = [], []
        for seed in range(1, 1 + spread.SEEDS):
            seeded = {**keys, "run.seed": str(1000 + seed), "checkpoint.every": "0"}
            rows = []
            for wanted in (meaning.one_rank(seeded, False), meaning.one_rank(seeded, True), seeded):
                output = f"{self.name}/seeded"
                result = self.starter.train(wanted, output)
                rows.append(Record(self.starter.folder / output, result.out).rows)
                shutil.rmtree(self.starter.folder / output, ignore_errors=True)
                if result.code != 0:
                    return False  # nothing was learned
            single.append(spread.distances(rows[0], rows[1]))
            case.append(spread.distances(rows[0], rows[2]))
        if len({str(sorted(distances.items())) for distances in case}) < spread.SEEDS // 2:
            return False  # seeds hardly matter here
        if spread.verdict(case, single, *meaning.tolerances(keys)):
            return False
        self.rounding = True
        self.left_out.append(f"reference: far in 16 bits, as rounding with {spread.SEEDS} seeds is on one rank")
        return True

    def compare_with_twin(self, keys, result, record, here):
        plain = meaning.twin(keys)
        if plain is None:
            return
        if record.last_checkpoint() is not None:
            plain.update({"checkpoint.every": "30min"})
        plain.update(meaning.first_weights(keys))
        # A rule may want what was left out (a limit may choose what was given).
        if self.starter.check(plain).code != 0:
            self.left_out.append("twin: --check refuses it")
            return
        other, twin = self.train(plain, f"{here}/twin")
        if text := compare.bits(twin, record):
            raise Failed("bits", text, result, other)
        if record.last_checkpoint() is not None:
            self.compare_states("bits", record, twin, 0.0, result, other)

    def compare_states(self, kind, record, wanted, tolerance, *results):
        step = max(record.checkpoints)
        if step not in wanted.checkpoints:
            raise Failed(kind, f"checkpoint of step {step}, expected one of {sorted(wanted.checkpoints)}", *results)
        said = self.starter.run(["checkpoint", "diff", wanted.checkpoints[step], record.checkpoints[step]])
        if text := compare.arrays(said.out, tolerance):
            raise Failed(kind, text, *results, said)

    # Acts.

    def resume(self, case, keys, result, record, reference, here):
        step = int(case.act("resume"))
        if step not in record.checkpoints:
            self.left_out.append("resume: no checkpoint of its step")  # shrunk away, or written by time
            return
        second = {key: value for key, value in case.resumed_keys().items()
                  if key not in ("checkpoint.load", "checkpoint.dir", "run.output_dir")}
        second.pop("checkpoint.resume", None)
        if second.get("pipeline.schedule") == "file":
            second["pipeline.file"] = keys["pipeline.file"]
        if self.starter.check(second).code == 2:
            self.left_out.append("resume: --check refuses the second layout")  # that is a case of its own
            return
        output = f"{here}/resumed"
        if case.act("resume.auto"):  # as after a run that was stopped there
            output = f"{here}/stopped"
            shutil.copytree(self.starter.folder / here / "run", self.starter.folder / output)
            for path in (self.starter.folder / output).glob("*/*.h5"):
                if int(path.stem.rsplit("-", 1)[1]) > step:
                    path.unlink()
            if "checkpoint.dir" in keys:
                second["checkpoint.dir"] = "@"
        else:
            second["checkpoint.resume"] = str(record.checkpoints[step].relative_to(self.starter.folder))
        again = self.starter.train(second, output, goes_on=bool(case.act("resume.auto")))
        if again.code != 0:
            raise Failed("resume", f"exit code {again.code}\n{again.out[-1500:]}", result, again)
        resumed = Record(self.starter.folder / output, again.out)
        if case.act("resume.same") and keys.get("run.deterministic") != "false":
            text = compare.bits(record, resumed, step + 1)
        else:
            skipped = record.summary.get("skipped_steps", 0) or resumed.summary.get("skipped_steps", 0)
            text = ""
            if not skipped and not self.rounding:
                text = compare.rows(reference, resumed, *meaning.tolerances(keys), step + 1)
        if text:
            raise Failed("resume", text, result, again)

    def after(self, name, case, keys, result, record, reference, here):
        """The same command on the last checkpoint, and on that of the reference, on one rank."""
        if record.last_checkpoint() is None or max(record.checkpoints) not in reference.checkpoints:
            self.left_out.append(f"{name}: no checkpoint")
            return
        file, plain_file = record.last_checkpoint(), reference.checkpoints[max(record.checkpoints)]
        number, layout = int(case.act(name)), words(case.act_keys(name))
        exact = keys.get("run.precision", "fp64") == "fp64"
        options = {"eval": ["--file", "text.txt"] if keys.get("data.split") == "0.0" else [],
                   "generate": ["--tokens", "9", "--temperature", "0", "--json"], "export": []}[name]
        goals = [f"{here}/{n}" for n in ("model", "plain_model")] if name == "export" else [None, None]
        both = (file, goals[0], layout, number), (plain_file, goals[1], [], 1)
        said, plain = (self.starter.run([name, path, *([goal] if goal else []), *options, *where], count)
                       for path, goal, where, count in both)
        if said.code == 2 and plain.code == 2 and all(part in said.out for part in PARTS):
            if name == "export" or any(text in said.out for text in NEEDS_TEXT):
                self.left_out.append(f"{name}: refused, as of one rank")
                return
        if said.code == 2 and layout and any(text in said.out for text in NEEDS_SIZES):
            self.left_out.append(f"{name}: the layout does not fit the model")
            return
        if said.code != 0:
            raise Failed(name, f"exit code {said.code}\n{said.out[-1500:]}", result, said)
        if plain.code != 0:
            raise Failed(name, f"exit code {plain.code} for the checkpoint of one rank\n{plain.out[-1500:]}", plain)
        if record.summary.get("skipped_steps", 0):
            self.left_out.append(f"{name}: fp16 skipped a step")
        elif self.rounding:
            self.left_out.append(f"{name}: rounding made other weights")
        elif text := self.different(name, said, plain, goals, exact, meaning.tolerances(keys)[0]):
            raise Failed(name, text, result, said, plain)

    def different(self, name, said, plain, goals, exact, tolerance):
        if name == "export":
            folders = [self.starter.folder / goal for goal in goals]
            again = self.starter.run(["import", goals[0], f"{goals[0]}.h5"])
            if again.code != 0:
                return f"p3d import of the exported folder: exit code {again.code}\n{again.out[-1500:]}"
            return compare.models(folders[1], folders[0], 1e-9) if exact else ""
        if name == "generate":
            return "" if not exact or said.out == plain.out else f"expected {plain.out!r}, found {said.out!r}"
        losses = [float(re.search(r"loss (\S+) nats", r.out)[1]) for r in (plain, said)]
        if compare.close(*losses, max(tolerance, 1e-9)):
            return ""
        return f"loss: expected {losses[0]}, found {losses[1]}"
