#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""p3d on one GPU in bf16: steps of a Llama of 1.1 billion parameters, with PyTorch beside them, steps of other kinds of
models, attention both ways, and kernels against the ceilings of memory and GEMMs.

    gpu.py --build build/release [--out benchmark-results/gpu] [--peak 989.4] [--torch python3] [--steps 8]
           [--only steps|models|attention|kernels]...

--build: a build of p3d for GPUs, with -DP3D_BUILD_BENCHMARKS=ON. --peak: TFLOP/s of the GPU in bf16 by its datasheet
(989.4: H100 and H200). --torch: a Python that has PyTorch; without it there is no peer. Writes steps.csv, models.csv,
attention.csv and kernels.csv, and prints the steps.

MFU: FLOPs of the model over the time of the median step and the peak. Attention counts all keys of a sample, masked
ones too, as in PaLM (arXiv 2204.02311, appendix B); causal_MFU counts the keys that are seen. Nothing that is
recomputed counts.
"""
import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

HIDDEN, LAYERS = 2048, 22
INPUT = """
[run]
name = "llama-1b"
steps = {steps}
log_every = 1
eval_batches = 0
precision = "bf16"
[model]
seq_len = {seq_len}
{model}
[batch]
micro = {micro}
global = {sequences}
[data]
path = "{text}"
[optimizer]
lr = 1e-5
[checkpoint]
every = 0
"""
LLAMA = f"""vocab_size = 32000
hidden = {HIDDEN}
layers = {LAYERS}
heads = 32
kv_heads = 4
ffn = 5632
norm = "rmsnorm"
position = "rope"
activation = "swiglu"
bias = false
tied_embeddings = false"""
# Name, and what it sets. Sums of cuDNN's backward pass are in a fixed order where run.deterministic is true.
FORMS = (("deterministic (default)", []), ("run.deterministic=false", ["run.deterministic=false"]),
         ("linalg.attention=gemms", ["linalg.attention=gemms"]))
DENSE = ["model.layers=12", "model.hidden=2048", "model.heads=16", "model.kv_heads=4"]
# Other kinds of models: name, tokens of a sample, samples of a microbatch, keys. The first three are the Llama.
# Documents are lines of the text: 60 bytes on average.
MODELS = (("packed documents", 2048, 4, ["data.pack=true", "data.eod_token=10"]),
          ("packed documents, GEMMs", 2048, 4, ["data.pack=true", "data.eod_token=10", "linalg.attention=gemms"]),
          ("dropout 0.1", 2048, 4, ["model.dropout=0.1"]),
          ("32 experts of 1,024, 4 for a token", 4096, 2,
           [*DENSE, "model.moe.experts=32", "model.moe.top_k=4", "model.moe.ffn=1024"]),
          ("Moonlight, 4 of 27 layers (MLA, 64 experts)", 4096, 2,
           ["model.preset=moonlight-16b-a3b", "model.layers=4"]),
          ("gemma2-2b (caps, windows)", 4096, 1, ["model.preset=gemma2-2b"]))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "benchmark-results/gpu")
    parser.add_argument("--peak", type=float, default=989.4)
    parser.add_argument("--torch", default="")
    parser.add_argument("--steps", type=int, default=8, help="of each run, 2 at least; the first is not counted")
    parser.add_argument("--only", action="append", choices=("steps", "models", "attention", "kernels"))
    return parser.parse_args()


def output_of(command, folder):
    done = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{command[0]}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}", file=sys.stderr)
        return None
    return done.stdout


def write_input(folder, seq_len, micro, steps, model=LLAMA):
    """The input of a model, with a text that has as many tokens as its evaluation wants."""
    text, path = folder / "text", folder / "llama-1b.toml"
    text.write_bytes((HERE.parent / "LICENSE").read_bytes() * (1 + 40 * seq_len // 11000))
    path.write_text(INPUT.format(model=model, steps=steps, seq_len=seq_len, micro=micro, sequences=4 * micro,
                                 text=text))
    return path


def run_p3d(args, folder, path, run, keys):
    """The median seconds of a step, the model's FLOPs of a step, the last loss, and the log's line of attention."""
    log = output_of([args.build / "p3d", path, f"run.name={run}", *keys], folder)
    if log is None:
        return None
    (args.out / f"{run}.log").write_text(log)
    flops = json.loads((folder / "runs" / run / "summary.json").read_text())["model_flops_per_step"]
    with open(folder / "runs" / run / "metrics.csv", newline="") as file:
        metrics = list(csv.DictReader(file))
    seconds = statistics.median(float(r["step_ms"]) for r in metrics[1:]) / 1000
    attention = next((line for line in log.splitlines() if line.startswith("Attention")), "")
    return seconds, flops, metrics[-1]["loss"], attention


def time_steps(args, folder):
    rows = []
    for seq_len, micro in ((2048, 4), (8192, 1)):
        tokens, flops = seq_len * 4 * micro, None
        path = write_input(folder, seq_len, micro, args.steps)
        for name, keys in FORMS:
            run = name.split("=")[0].split(" ")[0].replace(".", "-") + f"-{seq_len}"
            if found := run_p3d(args, folder, path, run, keys):
                seconds, flops, loss, attention = found
                rows.append(("p3d", name, seq_len, tokens, seconds, flops, loss, attention))
        if args.torch:
            peer = [args.torch, HERE / "peers/pytorch_step.py", path, "--device", "cuda", "--precision", "bf16"]
            log = output_of([*peer, "--compile", "--steps", args.steps, "--warmup", 3], folder)
            if log is not None and flops is not None:
                facts = dict(line.split(" ", 1) for line in log.splitlines() if " " in line)
                rows.append((f"PyTorch {facts['torch']}", "compiled, SDPA, fused AdamW", seq_len, tokens,
                             float(facts["step_s_median"]), flops, facts["loss"], facts["device"]))
    with open(args.out / "steps.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        head = "program form seq_len tokens_a_step step_s tokens_per_s TFLOPs MFU causal_MFU loss note"
        writer.writerow(head.split())
        print(f"{'':22} {'':28} {'tokens':>6} {'tokens/s':>9} {'TFLOP/s':>8} {'MFU':>6} {'causal':>6}")
        for program, name, seq_len, tokens, seconds, flops, loss, note in rows:
            speed = flops / seconds * 1e-12
            masked = tokens * 6 * LAYERS * HIDDEN * (seq_len - 1)  # of 12 layers hidden seq_len FLOPs of a token
            causal = (flops - masked) / seconds * 1e-12 / args.peak
            figures = (f"{seconds:.4f}", f"{tokens / seconds:.0f}", f"{speed:.1f}", f"{speed / args.peak:.3f}",
                       f"{causal:.3f}")
            writer.writerow([program, name, seq_len, tokens, *figures, loss, note])
            print(f"{program:22} {name:28} {seq_len:6} {tokens / seconds:9.0f} {speed:8.1f} {speed / args.peak:6.3f} "
                  f"{causal:6.3f}")
    return len(rows) == 2 * (len(FORMS) + bool(args.torch))


def time_models(args, folder):
    done = 0
    with open(args.out / "models.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("model seq_len tokens_a_step step_s tokens_per_s TFLOPs MFU loss note".split())
        for number, (name, seq_len, micro, keys) in enumerate(MODELS):
            preset = any(key.startswith("model.preset") for key in keys)  # it has sizes of its own
            path = write_input(folder, seq_len, micro, args.steps, "" if preset else LLAMA)
            found = run_p3d(args, folder, path, f"model-{number}", keys)
            if not found:
                continue
            seconds, flops, loss, attention = found
            tokens, speed = seq_len * 4 * micro, flops / seconds * 1e-12
            writer.writerow([name, seq_len, tokens, f"{seconds:.4f}", f"{tokens / seconds:.0f}", f"{speed:.1f}",
                             f"{speed / args.peak:.3f}", loss, attention])
            file.flush()
            print(f"{name:44} {seq_len:6} {tokens / seconds:9.0f} {speed:8.1f} {speed / args.peak:6.3f}", flush=True)
            done += 1
    return done == len(MODELS)


def main():
    args = arguments()
    args.steps = max(2, args.steps)
    args.build, args.out = args.build.resolve(), args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = args.only or ["steps", "models", "attention", "kernels"]
    good = True
    kernels = args.build / "benchmarks/bench_kernels"
    with tempfile.TemporaryDirectory() as folder:
        for name, words in (("attention", ["--attention-bf16", 16384]),
                            ("kernels", ["--roof-bf16", 8192, 2048, 5632, 32000, 32])):
            if name in wanted:
                table = output_of([kernels, *words], folder)
                good = good and table is not None
                if table is not None:
                    (args.out / f"{name}.csv").write_text(table)
        if "steps" in wanted:
            good = time_steps(args, pathlib.Path(folder)) and good
        if "models" in wanted:
            good = time_models(args, pathlib.Path(folder)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
