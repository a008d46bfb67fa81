# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of p3d bit by bit: trains 20 steps in 26 layouts with each and compares the hashes of all weights
and moments. For a change that must not touch a number.

usage: python3 tests/invariance/same_bits.py BEFORE AFTER [--all]      (two programs; needs h5py and mpiexec)

--all: every layout in fp64 and in fp32, those with stages under four schedules (some 25 minutes on 2 cores).
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import h5py

MODEL = ["model.vocab_size=256", "model.hidden=48", "model.heads=4", "model.layers=4", "model.seq_len=40",
         "batch.global=12", "batch.micro=1", "run.steps=20", "run.log_every=20", "optimizer.lr=1e-2",
         "checkpoint.every=20", "checkpoint.resume=none", "run.eval_every=0", "run.eval_batches=0",
         "optimizer.lr_schedule=constant"]
LAYOUTS = [  # ranks, overrides
    (1, []),
    (2, ["parallel.dp=2"]),
    (2, ["parallel.tp=2", "model.dropout=0.1"]),
    (2, ["parallel.pp=2", "pipeline.schedule=1f1b"]),
    (3, ["parallel.dp=3", "run.precision=fp64"]),
    (4, ["parallel.dp=2", "parallel.tp=2", "run.precision=fp64", "model.dropout=0.1"]),
    (4, ["parallel.pp=4", "pipeline.schedule=zb_h1"]),
    (4, ["parallel.pp=2", "parallel.tp=2", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2"]),
    (4, ["parallel.dp=2", "parallel.pp=2", "pipeline.schedule=zb_v", "run.precision=fp64"]),
    (4, ["parallel.pp=4", "pipeline.schedule=gpipe", "model.preset=llama-124m", "model.kv_heads=2", "model.ffn=96"]),
    (6, ["parallel.dp=3", "parallel.tp=2"]),
    (8, ["parallel.dp=2", "parallel.tp=2", "parallel.pp=2", "pipeline.schedule=looped_bfs",
         "pipeline.virtual_stages=2"]),
    # The forms of the embedding and of the output layer.
    (4, ["parallel.pp=4", "pipeline.schedule=1f1b", "pipeline.vocab_parallel=true"]),
    (4, ["parallel.pp=2", "parallel.tp=2", "parallel.sequence=true", "pipeline.schedule=zb_v",
         "pipeline.vocab_parallel=true", "model.tied_embeddings=false", "model.dropout=0.1", "run.precision=bf16"]),
    (2, ["parallel.tp=2", "parallel.sequence=true", "parallel.embedding=replicated", "model.dropout=0.1",
         "model.tied_embeddings=false"]),
    (4, ["parallel.pp=2", "parallel.tp=2", "pipeline.schedule=zb_h1", "model.mtp.depth=2",
         "model.tied_embeddings=false", "model.position=rope"]),
    (2, ["parallel.pp=2", "pipeline.schedule=zb_h1", "run.precision=bf16", "model.logits_softcap=20",
         "model.logits_scaling=2", "model.embedding_multiplier=3", "model.position=rope",
         "memory.recompute=full"]),
    # What else moves numbers: experts, context parallelism, sharded, offloaded and recomputed state, packed documents,
    # an update before its norm is known, a pipeline that does not empty, compressed gradients.
    (4, ["parallel.dp=2", "parallel.ep=2", "parallel.pp=2", "model.preset=mixtral-tiny", "model.kv_heads=4",
         "pipeline.schedule=zb_h1", "run.precision=fp64"]),
    (4, ["parallel.cp=2", "parallel.tp=2", "parallel.sequence=true", "model.position=rope"]),
    (4, ["parallel.dp=2", "parallel.pp=2", "pipeline.schedule=1f1b", "memory.shard=parameters"]),
    (2, ["parallel.pp=2", "pipeline.schedule=gpipe", "memory.offload_activations=disk",
         'memory.recompute=["norm", "activation"]']),
    (2, ["parallel.dp=2", "memory.offload_optimizer=disk", "memory.offload_parameters=disk"]),
    (2, ["parallel.pp=2", "pipeline.schedule=zb_h1", "data.pack=true", "data.eod_token=10"]),
    (2, ["parallel.pp=2", "pipeline.schedule=zb_h2", "optimizer.post_validation=true", "optimizer.grad_clip=1"]),
    (2, ["parallel.pp=2", "pipeline.schedule=pipedream", "optimizer.grad_clip=0",
         "model.tied_embeddings=false"]),
    (2, ["parallel.dp=2", "comm.compress=powersgd", "comm.workers=2"]),
]


SCHEDULES = [["pipeline.schedule=1f1b"], ["pipeline.schedule=gpipe"], ["pipeline.schedule=zb_h1"],
             ["pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2"]]


def every_case():
    """The layouts of LAYOUTS, times precisions, times schedules where there are stages."""
    cases = []
    for ranks, overrides in LAYOUTS:
        rest = [o for o in overrides if not o.startswith(("pipeline.", "run.precision"))]
        stages = any(o.startswith("parallel.pp=") for o in rest)
        for precision in ("fp64", "fp32"):
            for schedule in SCHEDULES if stages else [[]]:
                layers = ["model.layers=8"] if "parallel.pp=4" in rest and len(schedule) > 1 else []
                cases.append((ranks, rest + schedule + layers + [f"run.precision={precision}"]))
    return cases


def hash_of(path):
    """Of the names, shapes, types and bytes of all arrays of parameters and moments."""
    total = hashlib.sha256()

    def visit(name, item):
        kinds = ("parameters", "first_moment", "second_moment", "previous_weights")
        if isinstance(item, h5py.Dataset) and name.split("/")[0].split(".")[0] in kinds:
            total.update(f"{name} {item.shape} {item.dtype}".encode())
            total.update(item[()].tobytes())
    with h5py.File(path) as file:
        file.visititems(visit)
    return total.hexdigest()[:16]


def train(program, ranks, overrides, folder):
    source = pathlib.Path(__file__).resolve().parents[2]
    model = [o for o in MODEL if o.split("=")[0] not in {k.split("=")[0] for k in overrides}]
    subprocess.run(["mpiexec", "-n", str(ranks), program, "input.toml", *model, *overrides], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    files = sorted(folder.rglob("*.h5"))
    assert files, f"no checkpoint in {folder}"
    return hash_of(files[-1])


def main():
    programs = [str(pathlib.Path(p).resolve()) for p in sys.argv[1:3]]
    assert len(programs) == 2, __doc__
    cases = every_case() if "--all" in sys.argv[3:] else LAYOUTS
    different = 0
    for ranks, overrides in cases:
        hashes = []
        for program in programs:
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                licence = (pathlib.Path(__file__).resolve().parents[2] / "LICENSE").read_text()
                (folder / "text.txt").write_text(licence)
                (folder / "input.toml").write_text(
                    '[run]\nname = "bits"\nseed = 7\n[data]\nformat = "text"\npath = ["text.txt"]\n[model]\n')
                hashes.append(train(program, ranks, overrides, folder))
        same = hashes[0] == hashes[1]
        different += not same
        print(f"{'same     ' if same else 'DIFFERENT'} {hashes[0]} {hashes[1]}  {ranks} ranks {' '.join(overrides)}",
              flush=True)
    print(f"{len(cases) - different} passed, {different} failed")
    return different != 0


if __name__ == "__main__":
    sys.exit(main())
