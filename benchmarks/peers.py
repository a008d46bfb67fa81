# SPDX-License-Identifier: Apache-2.0
"""The same model, batch and cores in PyTorch and in p3d, in turn; the ratio of tokens/s pair by pair."""
import pathlib
import subprocess

import layouts
import measure
import picture

HERE = pathlib.Path(__file__).resolve().parent


def resolved_input(args, values):
    """The input with the preset written out, as PyTorch's script wants it."""
    program = pathlib.Path(args.build) / "p3d"
    words = [str(program), "--check", "--verbose", args.input, "--ranks", str(args.ranks), *layouts.keys(values),
             *args.keys]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise measure.Failed(f"exit code {done.returncode} of: {' '.join(words)}")
    lines = []
    for line in done.stdout.splitlines():
        if line.startswith("Mesh:"):
            break
        if not line.startswith("preset"):
            lines.append(line)
    return "\n".join(lines) + "\n"


KINDS = {"eager": [], "compiled": ["--compile"], "ddp": [], "ddp_compiled": ["--compile"]}


def pytorch(args, path, kind):
    """One process with a thread a core, or, as DistributedDataParallel over gloo, one process a core."""
    processes = args.cores if kind.startswith("ddp") else 1
    launcher = ["-m", "torch.distributed.run", "--master_addr", "127.0.0.1", "--master_port", "29517",
                "--nproc_per_node", str(processes)] if processes > 1 else []
    words = [*args.prefix.split(), args.python, *launcher, str(HERE / "peers/pytorch_step.py"), str(path),
             "--threads", str(args.cores // processes), "--steps", str(max(2, args.rounds // 2)), "--warmup", "1",
             *KINDS[kind]]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise measure.Failed(f"exit code {done.returncode} of: {' '.join(words)}")
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def peers(args):
    batch = next((int(k.split("=")[1]) for k in args.keys if k.startswith("batch.global=")), 4)
    own = layouts.layout(args.ranks, 1, 1, batch)
    common = {"run.eval_batches": 0, "run.output_dir": "/tmp", "data.format": "synthetic"}
    # PyTorch takes the whole batch at once.
    path = args.out / "peers-input.toml"
    text = resolved_input(args, {**common, **own})
    path.write_text(text.replace(f"micro = {own['batch.micro']}", f"micro = {batch}", 1))
    kinds = args.kinds or [kind for kind, words in KINDS.items() if (args.compile or not words)
                           and (args.cores > 1 or not kind.startswith("ddp"))]
    rows = []
    for turn in range(1, args.turns + 1):
        row = {"turn": turn}
        for kind in kinds:
            said = pytorch(args, path, kind)
            row[f"pytorch_{kind}"] = float(said["tokens_per_s"])
        table = measure.run(args, "step", args.ranks, ["--rounds", str(args.rounds), args.input,
                                                       *layouts.keys({**common, **own}), *args.keys], None)
        middle = measure.median_row(table)
        row |= {"p3d": float(middle["tokens_per_s"]), "mfu": float(middle["mfu"])}
        row |= {f"ratio_{kind}": row["p3d"] / row[f"pytorch_{kind}"] for kind in kinds}
        rows.append(row)
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    stamp = table.stamp + [f"PyTorch {said['torch']}, BLAS {said['blas']}, {said['threads']} threads, "
                           f"AdamW {said['adamw']}"]
    measure.write_csv(args.out / "peers.csv", stamp, list(rows[0]), rows)
    picture.bars(args.out / "peers.svg", f"p3d (dp={args.ranks}) and PyTorch {said['torch']} on {args.cores} cores",
                 table.short_stamp(), "tokens/s",
                 [f"turn {r['turn']}" for r in rows], ["p3d", *(f"PyTorch {k}" for k in kinds)],
                 [[r["p3d"], *(r[f"pytorch_{k}"] for k in kinds)] for r in rows])
    for kind in kinds:
        print(f"p3d / PyTorch {kind}: {measure.median([r[f'ratio_{kind}'] for r in rows]):.2f} "
              f"(median of {len(rows)} pairs)")
