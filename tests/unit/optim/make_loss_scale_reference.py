# SPDX-License-Identifier: Apache-2.0
"""Writes loss_scale_reference.txt: traces of two independent loss scalers over scripted overflows.

  torch      torch.amp.GradScaler itself (PyPI's torch; CPU)
  megatron   the rule of Megatron-LM's dynamic scaler, written down here from its description: an overflow uses up one
             unit of hysteresis and, when none is left, backs off; hysteresis is refilled only when the scale grows

usage, in a virtual environment with torch:  python3 make_loss_scale_reference.py > loss_scale_reference.txt
Each line: rule initial growth backoff interval hysteresis floor | overflow (0 or 1) of each step | scale after each.
"""
import random

import torch


def torch_trace(initial, growth, backoff, interval, overflows):
    scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff,
                                  growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scales = []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        if overflow:
            weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def megatron_trace(initial, growth, backoff, interval, hysteresis, floor, overflows):
    scale, clean, left, scales = initial, 0, hysteresis, []
    for overflow in overflows:
        if overflow:
            clean, left = 0, left - 1
            if left <= 0:
                scale = max(scale * backoff, floor)
        else:
            clean += 1
            if clean == interval:
                clean, left, scale = 0, hysteresis, scale * growth
        scales.append(scale)
    return scales


def line(rule, options, overflows, scales):
    print(rule, *options, "|", *(int(o) for o in overflows), "|", *(f"{s:.17g}" for s in scales))


def main():
    draw = random.Random(5)
    scripts = [[False] * 12, [True] * 12, [i % 5 == 4 for i in range(40)],
               [i in (3, 4, 5, 20, 21, 37) for i in range(48)]]
    scripts += [[draw.random() < rate for _ in range(120)] for rate in (0.02, 0.1, 0.3, 0.6)]
    for overflows in scripts:
        for initial, growth, backoff, interval in ((65536.0, 2.0, 0.5, 4), (2.0**15, 2.0, 0.5, 7),
                                                   (1000.0, 1.5, 0.7, 3), (2.0**120, 2.0, 0.5, 2)):
            if backoff == 0.5:  # its scale is a float: factors that are no powers of two round otherwise
                line("torch", (initial, growth, backoff, interval, 1, 0.0), overflows,
                     torch_trace(initial, growth, backoff, interval, overflows))
            for hysteresis, floor in ((1, 1.0), (2, 1.0), (3, 16384.0)):
                if initial < 2.0**100:
                    line("megatron", (initial, growth, backoff, interval, hysteresis, floor), overflows,
                         megatron_trace(initial, growth, backoff, interval, hysteresis, floor, overflows))


if __name__ == "__main__":
    main()
