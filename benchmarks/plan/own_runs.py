# SPDX-License-Identifier: Apache-2.0
"""How far predictions of p3d's own runs are off on this machine: python3 benchmarks/plan/own_runs.py

`p3d plan calibrate` measures the machine, then every layout is predicted, then it runs. The output is a table that
`p3d plan grade` reads (own_runs.csv with own-N-TYPE.toml, a cluster file for each number of ranks and type), and for
each model and number of ranks whether the layout that is quickest was predicted to be. For memory it prints how far
predictions were from what the system found. About 40 minutes on two cores with --ranks 1,2,4,8 --most 12.
"""
import argparse
import csv
import itertools
import pathlib
import re
import statistics
import subprocess

COMMON = {"run.eval_every": 0, "run.eval_batches": 0, "run.ceiling": "false", "checkpoint.every": 0,
          "data.format": "synthetic"}
MODELS = {
    "gpt": {"model.layers": 8, "model.hidden": 512, "model.heads": 8, "model.vocab_size": 8192, "model.seq_len": 256,
            "batch.global": 8},
    "llama": {"model.norm": "rmsnorm", "model.activation": "swiglu", "model.position": "rope", "model.bias": "false",
              "model.layers": 4, "model.hidden": 512, "model.heads": 8,
              "model.kv_heads": 4, "model.head_dim": 64, "model.ffn": 1536, "model.vocab_size": 4096,
              "model.seq_len": 512, "batch.global": 8},
}
VARIANTS = [{}, {"batch.micro": 2}, {"memory.recompute": "full"}, {"memory.shard": "optimizer"},
            {"memory.shard": "gradients", "batch.micro": 2}, {"pipeline.schedule": "zb_h1"},
            {"pipeline.schedule": "zb_v"}, {"pipeline.schedule": "zb_h1", "pipeline.vocab_parallel": "true"},
            {"run.precision": "bf16"}]


def layouts(ranks):
    """Layouts of so many ranks with the keys that make a difference there."""
    for tp, pp in itertools.product((1, 2, 4), (1, 2, 4)):
        if ranks % (tp * pp):
            continue
        dp = ranks // tp // pp
        for more in VARIANTS:
            keys = " ".join(more)
            if ("pipeline" in keys and pp == 1) or ("shard" in keys and dp == 1):
                continue
            yield {"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": dp, "batch.micro": 1,
                   "parallel.order": "tp-cp-dp-pp", **more}


def type_of(layout):
    return layout.get("run.precision", "fp32")


def spread(found, most):
    """At most so many of a list, at equal distances, the first and the last among them."""
    if most < 2 or len(found) <= most:
        return found
    return [found[i * (len(found) - 1) // (most - 1)] for i in range(most)]


def words(keys):
    return [f"{key}={value}" for key, value in keys.items()]


def in_bytes(text):
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def p3d(options, ranks, *arguments):
    run = subprocess.run([*options.mpiexec.split(), "-n", str(ranks), options.program, *arguments], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=options.folder)
    return run.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/p3d")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--most", type=int, default=0,
                        help="at most so many layouts a number of ranks, spread over all of them; 0: all")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/own_runs"))
    options = parser.parse_args()
    options.program = str(pathlib.Path(options.program).resolve())
    options.folder.mkdir(parents=True, exist_ok=True)
    rows, groups, memories = [], {}, []
    for ranks in map(int, options.ranks.split(",")):
        chosen = spread(list(layouts(ranks)), options.most)
        for kind in sorted(set(map(type_of, chosen)), reverse=True):
            # Links are measured between two ranks at least.
            print(p3d(options, max(ranks, 2), "plan", "calibrate", "--out", f"own-{ranks}-{kind}.toml",
                      "--types", kind), flush=True)
        for model, layout in itertools.product(MODELS, chosen):
            keys = {**MODELS[model], **layout}
            cluster = f"own-{ranks}-{type_of(layout)}.toml"
            text = p3d(options, ranks, *words({**keys, **COMMON, "run.steps": options.steps, "plan.cluster": cluster,
                                               "run.output_dir": "run"}))
            found = re.search(r"Predicted ([0-9.e-]+) s a step.*measured ([0-9.e-]+) s", text)
            if not found:
                print(f"{model} on {ranks}: {words(layout)}: " + " ".join(text.split())[-300:])
                continue
            predicted, measured = map(float, found.groups())
            memory = re.search(r"Memory of all ranks: ([0-9.]+ \w+) predicted, ([0-9.]+ \w+) found", text)
            if memory:
                memories.append((in_bytes(memory[1]), in_bytes(memory[2]), ranks))
            group = f"{model} on {ranks}" + (", bf16" if layout.get("run.precision") else "")
            rows.append({"id": f"r{len(rows) + 1}", "group": group, "cluster": cluster[:-5], "measured_s": measured,
                         **keys})
            groups.setdefault(group, []).append((predicted, measured, layout))
            off = 100 * (predicted / measured - 1)
            print(f"{group:<18} predicted {predicted:.4f} measured {measured:.4f} {off:+6.1f} %",
                  " ".join(words(layout)), flush=True)
    header = list(dict.fromkeys(key for row in rows for key in row))
    with open(options.folder / "own_runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"\n{'group':<18} {'rows':>4} {'mean':>6} {'median':>6} {'worst':>6}  first  regret of first, of first 3")
    for group, found in groups.items():
        off = [100 * abs(p / m - 1) for p, m, _ in found]
        best = min(m for _, m, _ in found)
        order = sorted(found, key=lambda row: row[0])
        place = [m for _, m, _ in order].index(best) + 1
        first, three = order[0][1], min(m for _, m, _ in order[:3])
        print(f"{group:<18} {len(found):>4} {statistics.mean(off):>6.1f} {statistics.median(off):>6.1f}"
              f" {max(off):>6.1f}  {place:>5}  {100 * (first / best - 1):.1f} %, {100 * (three / best - 1):.1f} %")
    if memories:
        off = [100 * abs(p / m - 1) for p, m, _ in memories]
        more = [(m - p) / ranks / 2**20 for p, m, ranks in memories]
        print(f"\nmemory: {statistics.mean(off):.1f} % off in the mean, median {statistics.median(off):.1f}, worst "
              f"{max(off):.1f}; found beside predicted, MiB a rank: {min(more):.1f} to {max(more):.1f}")


main()
