# SPDX-License-Identifier: Apache-2.0
"""Reads the GPU code of a build for CUDA: registers, spills, tensor cores, and how kernels get their arguments.

usage: sass.py --build <folder> --tools <folder of cuobjdump and nvdisasm> [--arch 80 90] [--objects <file>...]
               [--limits]

For each kernel of p3d, one line: registers, bytes of stack, loads and stores of local memory (spills are among them),
multiply-adds by tensor cores and without. Then what the library asks cuBLAS and cuDNN for, and the kernels that are
launched through constant memory: Kokkos puts a functor of 512 bytes or more there, unless its policy says that it is
light, and every such launch waits for the one before to end. With --limits those, and spills, are an error."""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

USAGE = re.compile(r"Function (\S+):\s*\n\s*(.*)")
FUNCTION = re.compile(r"^\s*Function : (\S+)", re.M)
NUMBER = re.compile(r"(REG|STACK|LOCAL):(\d+)")
TENSOR = re.compile(r"\b(HMMA|HGMMA|QGMMA|IMMA|DMMA|UTCHMMA)\b")
PLAIN = re.compile(r"\b(FFMA2?|DFMA|HFMA2)\b")
LOCAL = re.compile(r"\b(LDL|STL)\b")
LAUNCH = re.compile(r"cuda_parallel_launch_(constant|local|global)_memory")
CALLS = re.compile(r"\b(cublas\w*(?:[gG]emm|Matmul)\w*|cudnn\w*Execute\w*)\b")


class Kernel:
    def __init__(self):
        self.registers = self.stack = self.tensor = self.plain = self.local = 0


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0 and "does not contain device code" not in done.stderr:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def read(cuobjdump, path, arch):
    """The kernels of one object, by mangled name."""
    kernels = collections.defaultdict(Kernel)
    for name, numbers in USAGE.findall(run(cuobjdump, "-arch", f"sm_{arch}", "-res-usage", str(path))):
        found = {key: int(value) for key, value in NUMBER.findall(numbers)}
        kernels[name].registers, kernels[name].stack = found.get("REG", 0), found.get("STACK", 0)
    if not kernels:
        return {}
    text = run(cuobjdump, "-arch", f"sm_{arch}", "-sass", str(path))
    marks = list(FUNCTION.finditer(text))
    for mark, after in zip(marks, marks[1:] + [None]):
        body = text[mark.end():after.start() if after else len(text)]
        kernel = kernels[mark.group(1)]
        kernel.tensor, kernel.plain = len(TENSOR.findall(body)), len(PLAIN.findall(body))
        kernel.local = len(LOCAL.findall(body))
    return kernels


def short(name):
    """kernels::TeamBody<kernels::norm_blocks<bfloat16, float>::{lambda#1}> of what Kokkos wraps around it."""
    name = re.sub(r"_INTERNAL_\w+?::|\(anonymous namespace\)::|p3d::(device::)?", "", name)
    found = re.search(r"Parallel(?:For|Reduce|Scan|ForMDRange|ReduceMDRange)<(.*)", name)
    out, brackets, parentheses = "", 0, 0
    for c in found.group(1) if found else name:
        parentheses += {"(": 1, ")": -1}.get(c, 0)
        if parentheses > 0 or c == ")":
            continue  # the parameters of a function
        brackets += {"<": 1, ">": -1}.get(c, 0)
        if brackets < 0 or (c == "," and brackets == 0):
            break  # what follows is Kokkos' policy
        out += c
    return out.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--arch", nargs="+", default=["90"])
    parser.add_argument("--objects", nargs="+", type=pathlib.Path)
    parser.add_argument("--limits", action="store_true")
    args = parser.parse_args()
    cuobjdump = args.tools / "cuobjdump"
    os.environ["PATH"] = f"{args.tools}:{os.environ['PATH']}"  # it calls nvdisasm
    objects = args.objects or sorted((args.build / "src").rglob("*.o"))
    if not objects:
        sys.exit(f"no objects below {args.build / 'src'}")
    wrong = 0
    for arch in args.arch:
        kernels = {}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for found in pool.map(lambda path: read(cuobjdump, path, arch), objects):
                kernels.update(found)
        names = subprocess.run(["c++filt"], input="\n".join(kernels), stdout=subprocess.PIPE, text=True,
                               check=True).stdout.splitlines()
        ours = sorted((short(name), name, kernel) for name, kernel in zip(names, kernels.values()) if "p3d::" in name)
        print(f"sm_{arch}: {len(ours)} kernels of p3d")
        print(f"{'regs':>4} {'stack':>5} {'local':>5} {'tensor':>6} {'fma':>5}  kernel")
        for name, _, k in ours:
            print(f"{k.registers:>4} {k.stack:>5} {k.local:>5} {k.tensor:>6} {k.plain:>5}  {name[:150]}")
        constant = [name for name, full, _ in ours if "constant_memory" in full]
        local = [name for name, _, k in ours if k.local > 0]
        ways = collections.Counter(m.group(1) for _, full, _ in ours for m in [LAUNCH.search(full)] if m)
        print(f"sm_{arch}: most registers {max((k.registers for *_, k in ours), default=0)}; local memory (arrays, "
              f"spills) in {len(local)} kernels; tensor-core instructions in {sum(k.tensor > 0 for *_, k in ours)}; "
              f"launches by {', '.join(f'{way} memory {n}' for way, n in sorted(ways.items()))}")
        for name in constant:
            print(f"  through constant memory: {name[:150]}")
        wrong += len(constant)
    wants = collections.Counter(call for path in objects for call in CALLS.findall(run("nm", "-u", str(path))))
    print("calls of libraries with tensor cores: " + (", ".join(sorted(wants)) or "none"))
    if "cublasGemmEx" not in wants or "cublasGemmStridedBatchedEx" not in wants:
        print("  16-bit products lack cublasGemmEx or cublasGemmStridedBatchedEx")
        wrong += 1
    if args.limits and wrong:
        sys.exit(f"{wrong} kernels or calls are not as they should be")


main()
