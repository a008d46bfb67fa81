# SPDX-License-Identifier: Apache-2.0
"""Scaling over ranks and layouts, and ranks against threads. Every configuration is started several times, in turn with
the others, so that what disturbs the machine disturbs all; ratios are taken turn by turn."""
import measure
import picture


def defaults(args):
    """Keys that make the input a benchmark: no evaluation, synthetic data; the given keys come last and win."""
    ranks = {} if any(k.startswith("parallel.") for k in args.keys) else {"parallel.dp": args.ranks}
    return keys({"run.eval_batches": 0, "data.format": "synthetic", **ranks}) + args.keys


def keys(values):
    return [f"{key}={value}" for key, value in values.items()]


def layout(dp, tp, pp, batch):
    """One microbatch a step and copy, but for pipelines as many as there are sequences, and the schedule that p3d
    picks."""
    per_copy = batch // dp
    microbatches = per_copy if pp > 1 else 1
    out = {"parallel.dp": dp, "parallel.tp": tp, "parallel.pp": pp, "batch.global": batch,
           "batch.micro": per_copy // microbatches}
    if pp > 1:
        out["pipeline.layers_per_stage"] = "cost"
        out["pipeline.schedule"] = "auto"
    return out


def configurations(ranks, batch):
    """(family, name, ranks, global batch, keys). Strong: the same batch on more ranks; weak: the batch grows with the
    ranks."""
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= ranks]
    found = []
    for n in sizes:
        axes = [("dp", (n, 1, 1)), ("tp", (1, n, 1)), ("pp", (1, 1, n))] if n > 1 else [("one rank", (1, 1, 1))]
        for name, (dp, tp, pp) in axes:
            found.append(("strong", name, n, batch, layout(dp, tp, pp, batch)))
    if ranks % 4 == 0:
        half = ranks // 2
        found.append(("strong", "dp x tp", ranks, batch, layout(half, 2, 1, batch)))
        found.append(("strong", "dp x pp", ranks, batch, layout(half, 1, 2, batch)))
    for n in sizes:
        found.append(("weak", "dp", n, batch * n // ranks, layout(n, 1, 1, batch * n // ranks)))
    return found


def start(args, ranks, values, build=None):
    common = {"run.eval_batches": 0, "run.output_dir": "/tmp", "data.format": "synthetic", "model.seq_len": 256}
    words = ["--rounds", str(args.rounds), args.input, *keys({**common, **values}), *args.keys]
    return measure.run(args, "step", ranks, words, None, build)


def in_turn(args, named):
    """named: name -> (ranks, keys, build). Rows of (name, turn, tokens/s, MFU), and the stamp."""
    rows, stamp = [], []
    for turn in range(1, args.turns + 1):
        for name, (ranks, values, build) in named.items():
            table = start(args, ranks, values, build)
            middle = measure.median_row(table)
            rows.append({"name": name, "ranks": ranks, "turn": turn, "tokens_per_s": float(middle["tokens_per_s"]),
                         "mfu": float(middle["mfu"]), "ceiling": float(middle["ceiling"])})
            stamp = table.stamp
            short = table.short_stamp()
            print(f"turn {turn}  {name:<24} {ranks} rank(s)  {float(middle['tokens_per_s']):9.1f} tokens/s  "
                  f"MFU {float(middle['mfu']):.3f}", flush=True)
    return rows, stamp, short


def by_name(rows, name, column):
    return [r[column] for r in rows if r["name"] == name]


def ratio(rows, name, base):
    """Median over the turns of tokens/s against `base` in the same turn."""
    return measure.median(a / b for a, b in zip(by_name(rows, name, "tokens_per_s"),
                                                by_name(rows, base, "tokens_per_s")))


def scaling(args):
    batch = 4 * args.ranks
    found = configurations(args.ranks, batch)
    named = {f"{family} {name} {ranks}": (ranks, values, None) for family, name, ranks, _, values in found}
    rows, stamp, note = in_turn(args, named)
    measure.write_csv(args.out / "scaling.csv", stamp, list(rows[0]), rows)
    speed = {name: measure.median(by_name(rows, name, "tokens_per_s")) for name in named}
    one = speed["strong one rank 1"]
    series = {}
    for axis in ("dp", "tp", "pp"):
        own = [(ranks, speed[f"strong {name} {ranks}"]) for family, name, ranks, *_ in found
               if family == "strong" and name == axis]
        series[axis] = [(1, one), *own]
    for name in ("dp x tp", "dp x pp"):
        if f"strong {name} {args.ranks}" in speed:
            series[name] = [(args.ranks, speed[f"strong {name} {args.ranks}"])]
    series["dp, weak"] = [(ranks, speed[f"weak dp {ranks}"]) for family, name, ranks, *_ in found if family == "weak"]
    picture.lines(args.out / "scaling.svg",
                  f"Strong scaling at {batch} sequences a step, weak at {batch // args.ranks} a rank", note, "ranks",
                  "tokens/s", series, [(n, n * one) for n in sorted({f[2] for f in found})])
    base = f"strong dp {args.ranks}"
    print("\n| layout | tokens/s | MFU | of dp |\n|---|--:|--:|--:|")
    for name, (ranks, _, _) in named.items():
        shown = f"{ratio(rows, name, base):.2f}" if ranks == args.ranks and name.startswith("strong") else ""
        print(f"| {name} | {speed[name]:.0f} | {measure.median(by_name(rows, name, 'mfu')):.2f} | {shown} |")


def hybrid(args):
    """Flat (a rank a core) against ranks with threads, the batch being the same."""
    batch = 4 * args.ranks
    named = {f"flat {args.ranks} x 1": (args.ranks, layout(args.ranks, 1, 1, batch), args.build)}
    for ranks in (n for n in (1, 2) if n < args.ranks):
        named[f"hybrid {ranks} x {args.ranks // ranks}"] = (ranks, layout(ranks, 1, 1, batch), args.hybrid_build)
    rows, stamp, note = in_turn(args, named)
    measure.write_csv(args.out / "hybrid.csv", stamp, list(rows[0]), rows)
    names = list(named)
    picture.bars(args.out / "hybrid.svg", "Ranks against threads (ranks x threads)", note, "tokens/s", names,
                 ["tokens/s"], [[measure.median(by_name(rows, name, "tokens_per_s"))] for name in names])
    for name in names[1:]:
        print(f"{name} against {names[0]}: {ratio(rows, name, names[0]):.2f}")
