#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark, keeps its CSV with a stamp (git hash, compiler, Kokkos, BLAS, MPI, CPU) and draws a picture beside
it.

    benchmarks/run.py ceilings    GEMMs of the model (p3d and the raw BLAS), memory, messages; per rank,
                                  all at once
    benchmarks/run.py kernels     each kernel against those ceilings: a roofline, as table, CSV and picture; one core
    benchmarks/run.py attention   attention alone, forward and backward, against the ceiling; memory over the length;
                                  one core
    benchmarks/run.py step        tokens per second and MFU of whole steps, by phase
    benchmarks/run.py scaling     strong and weak scaling of dp, tp, pp and mixtures, and their ratios to dp
    benchmarks/run.py hybrid      one rank a core against fewer ranks with threads (needs two builds, see
                                  --hybrid-build)
    benchmarks/run.py peers       the same model in PyTorch and in p3d, in turn, on the same cores; ratio pair by pair

Build first: cmake --preset release -DP3D_BUILD_BENCHMARKS=ON && cmake --build --preset release
Keys of the input can follow the name: benchmarks/run.py step --ranks 4 parallel.dp=4 model.seq_len=256 batch.global=4
"""
import argparse
import os
import pathlib
import sys

import layouts
import measure
import peers
import picture

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ceilings", "kernels", "attention", "step", "scaling", "hybrid", "peers"))
    parser.add_argument("keys", nargs="*", metavar="SECTION.KEY=VALUE", help="override keys of the input")
    parser.add_argument("--input", default=str(ROOT / "inputs/gpt2-124m.toml"),
                        help="p3d input file (default: %(default)s)")
    parser.add_argument("--build", default=str(ROOT / "build/release"), help="build folder (default: %(default)s)")
    parser.add_argument("--hybrid-build", default=str(ROOT / "build/openmp"), help="build folder with OpenMP (hybrid)")
    parser.add_argument("--out", default="benchmark-results", help="folder for CSV and pictures (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=0, help="ranks (default: what parallel.* asks for, else 1; "
                        "scaling, hybrid, peers: the cores of this machine)")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of one start (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3,
                        help="scaling, hybrid, peers: how often each is started, in turn")
    parser.add_argument("--compile", action="store_true", help="peers: torch.compile too (PyTorch 2 or later)")
    parser.add_argument("--kinds", default="", metavar="KIND,...", help="peers: only these ways to run PyTorch: "
                        + ", ".join(peers.KINDS))
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="peers: the Python that has PyTorch (default: %(default)s)")
    parser.add_argument("--prefix", default="", help="words before every command, for example 'taskset -c 0'")
    args = parser.parse_intermixed_args()
    args.kinds = [kind for kind in args.kinds.split(",") if kind]
    for kind in args.kinds:
        if kind not in peers.KINDS:
            parser.error(f"--kinds: expected {', '.join(peers.KINDS)}, found '{kind}'")
    args.out = pathlib.Path(args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    wants_all_cores = args.what in ("scaling", "hybrid", "peers")
    args.cores = args.ranks or len(os.sched_getaffinity(0))
    if not args.ranks:
        args.ranks = args.cores if wants_all_cores else measure.ranks_of(args.keys)
    return args


def ceilings(args):
    table = measure.run(args, "ceilings", args.ranks, [args.input, "run.output_dir=/tmp", *layouts.defaults(args)],
                        "ceilings.csv")
    rows = [r for r in table.rows if r["kind"] == "gemm"]
    picture.bars(args.out / "ceilings.svg", f"Matrix products of the model, {args.ranks} rank(s) at once",
                 table.short_stamp(), "GFLOP/s of one rank", [r["name"] for r in rows], ["p3d", "raw BLAS"],
                 [[float(r["p3d"]), float(r["raw"] or 0)] for r in rows])


def kernels(args):
    table = measure.run(args, "kernels", 1, args.keys, "kernels.csv")
    bandwidth, speed = (float(table.rows[0][k]) for k in ("triad GB/s", "product GFLOP/s"))
    points = []
    for r in table.rows:
        gbs, gflops = float(r["GB/s"]), float(r["GFLOP/s"])
        if gflops > 0:
            points.append((r["kernel"], gflops / gbs, gflops))
    picture.roofline(args.out / "roofline.svg", "Kernels of a GPT-2 124M step under the roofline, one core",
                     table.short_stamp(), bandwidth, speed, points)
    picture.bars(args.out / "kernels.svg", "Time that the roofline allows over the time taken", table.short_stamp(),
                 "fraction of the roof", [r["kernel"] for r in table.rows], ["of the roof"],
                 [[float(r["roof"])] for r in table.rows], reference=(1.0, "roof (data from DRAM)"))
    lines = ["| kernel | ms | GB/s | of triad | GFLOP/s | of GEMM | of the roof |", "|---|--:|--:|--:|--:|--:|--:|"]
    for r in table.rows:
        lines.append("| " + " | ".join([r["kernel"]] + [f"{float(r[k]):.{d}f}" for k, d in (
            ("milliseconds", 2), ("GB/s", 1), ("of_triad", 2), ("GFLOP/s", 0), ("of_product", 2), ("roof", 2))]) + " |")
    (args.out / "roofline.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def attention(args):
    table = measure.run(args, "kernels", 1, ["--attention", *args.keys], "attention.csv")
    picture.bars(args.out / "attention.svg", "Attention alone against a GEMM, one core, 4 heads of 64",
                 table.short_stamp(), "fraction of the GEMM ceiling", [r["tokens"] for r in table.rows],
                 ["forward", "backward"],
                 [[float(r["forward_of_product"]), float(r["backward_of_product"])] for r in table.rows])


def step(args):
    table = measure.run(args, "step", args.ranks, ["--rounds", str(args.rounds), args.input, *layouts.defaults(args)],
                        "step.csv")
    phases = [name for name in table.names[5:] if any(float(r[name]) > 0 for r in table.rows)]
    picture.bars(args.out / "step.svg", f"A step by phase, {args.ranks} rank(s), "
                 f"median {float(table.rows[-1]['tokens_per_s']):.0f} tokens/s, MFU {float(table.rows[-1]['mfu']):.2f}",
                 table.short_stamp(), "seconds", [r["round"] for r in table.rows], phases,
                 [[float(r[name]) for name in phases] for r in table.rows], stacked=True)


def main():
    args = arguments()
    actions = {"ceilings": ceilings, "kernels": kernels, "attention": attention, "step": step,
               "scaling": layouts.scaling, "hybrid": layouts.hybrid, "peers": peers.peers}
    try:
        actions[args.what](args)
    except measure.Failed as failure:
        sys.exit(f"run.py: {failure}")
    print("written:", ", ".join(sorted(str(p) for p in args.out.iterdir()
                                       if p.stem.startswith((args.what, "roofline")))))


if __name__ == "__main__":
    main()
