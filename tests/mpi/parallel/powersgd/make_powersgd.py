# SPDX-License-Identifier: Apache-2.0
"""Makes powersgd.reference.txt: gradients of two workers and what PyTorch's PowerSGD hook gives for them.

usage: make_powersgd.py > powersgd.reference.txt      (PyTorch 2.15 from PyPI, gloo, CPU)

One 24 x 16 matrix is trained by DistributedDataParallel on two processes with powerSGD_hook: rank 2, error feedback,
warm start, from the third iteration on. The loss of a process is the sum of weight times a random matrix, which so is
its gradient. A block of the file is a name and its numbers: the first factor Q [16, 2] as the hook draws it, then for
each iteration the gradients of the workers and the mean that the hook returned."""
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

ROWS, COLS, RANK, START, STEPS, WORKERS = 24, 16, 2, 2, 6, 2


def gradient(step, worker):
    return torch.tensor(numpy.random.default_rng([step, worker]).standard_normal((ROWS, COLS)))


def work(worker, file):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    dist.init_process_group("gloo", rank=worker, world_size=WORKERS)
    torch.manual_seed(0)
    layer = torch.nn.Linear(COLS, ROWS, bias=False).double()
    model = torch.nn.parallel.DistributedDataParallel(layer)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=START,
                                        min_compression_rate=1, use_error_feedback=True, warm_start=True)
    drawn, plain = [], torch.randn

    def randn(*sizes, **options):
        drawn.append(plain(*sizes, **options))
        return drawn[-1].clone()

    powerSGD_hook.torch.randn = randn
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    out = []
    for step in range(STEPS):
        model.zero_grad()
        given = gradient(step, worker)
        # The input is the unit matrix, so the output is the weight's transpose.
        (model(torch.eye(COLS, dtype=torch.float64)) * given.T).sum().backward()
        out.append(layer.weight.grad.clone())
    if worker == 0:
        with open(file, "w", encoding="utf-8") as text:
            first = drawn[0].reshape(COLS, RANK)
            for name, numbers in [("Q", first)] + [
                    block for step in range(START, STEPS)
                    for block in [(f"worker0.{step}", gradient(step, 0)), (f"worker1.{step}", gradient(step, 1)),
                                  (f"mean.{step}", out[step])]]:
                text.write(name + " " + " ".join(f"{x:.17g}" for x in numbers.flatten().tolist()) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1] if len(sys.argv) > 1 else "/dev/stdout",), nprocs=WORKERS)
