# SPDX-License-Identifier: Apache-2.0
"""Compares what two runs left: each function returns the first difference in words, or ""."""
import json
import math
import re
import struct

FORMATS = {"F64": "d", "F32": "f"}


def close(a, b, tolerance):
    """Relative; two NaN or equal infinities agree."""
    if a == b or math.isnan(a) and math.isnan(b):
        return True
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def rows(reference, record, losses, norms, first=1):
    """Losses, norms, validation losses, tokens and learning rates of all steps from `first` on; a model with
    multi-token prediction has one more loss."""
    wanted = {step: row for step, row in reference.rows.items() if step >= first}
    found = {step: row for step, row in record.rows.items() if step >= first}
    if sorted(wanted) != sorted(found):
        return f"steps {sorted(found)}, expected {sorted(wanted)}"
    for step, row in wanted.items():
        other = found[step]
        for name, tolerance in (("tokens", 0.0), ("loss", losses), ("grad_norm", norms), ("lr", 1e-12),
                                ("eval_loss", losses), *mtp(row, losses)):
            if tolerance is None or row[name] == other[name]:
                continue
            if not row[name] or not other[name] or not close(float(row[name]), float(other[name]), tolerance):
                return f"{name} of step {step}: expected {row[name] or 'none'}, found {other[name] or 'none'}"
    return ""


def mtp(row, *more):
    return [("mtp_loss", *more)] if "mtp_loss" in row else []


def bits(first, second, begin=1):
    """The same digits in every column but those of time."""
    wanted = {step: row for step, row in first.rows.items() if step >= begin}
    found = {step: row for step, row in second.rows.items() if step >= begin}
    if sorted(wanted) != sorted(found):
        return f"steps {sorted(found)}, expected {sorted(wanted)}"
    for step, row in wanted.items():
        for name in ("tokens", "loss", "grad_norm", "lr", "eval_loss", *("".join(x) for x in mtp(row))):
            if row[name] != found[step][name]:
                return f"{name} of step {step}: expected {row[name]}, found {found[step][name]}"
    return experts(first, second) or samples(first, second)


def experts(first, second):
    """Tokens of each expert, where both runs logged the step."""
    for place in sorted(set(first.experts) & set(second.experts)):
        if first.experts[place] != second.experts[place]:
            return (f"tokens of experts in step {place[0]}, layer {place[1]}: expected {first.experts[place]}, "
                    f"found {second.experts[place]}")
    return ""


def samples(first, second):
    if first.sample != second.sample:
        return f"sample: expected {first.sample!r}, found {second.sample!r}"
    return ""


def choices(record):
    """Every token of a step makes top_k choices in each layer, whether or not an expert had room (docs/experts.md)."""
    resolved = (record.folder / "resolved.toml").read_text()
    section = resolved[resolved.index("[model.moe]"):]
    number, top_k = (int(re.search(rf"(?m)^{key} = (\d+)$", section)[1]) for key in ("experts", "top_k"))
    if number == 0:
        return ""
    if not record.experts and "\nlog_every = 1\n" in resolved:
        return "experts.csv: expected a line for each step and layer with experts, found none"
    for (step, layer), counts in sorted(record.experts.items()):
        if step not in record.rows:
            continue
        before = int(record.rows[step - 1]["tokens"]) if step - 1 in record.rows else 0
        if step > 1 and step - 1 not in record.rows:
            continue
        tokens = int(record.rows[step]["tokens"]) - before
        if sum(counts) != tokens * top_k:
            return (f"choices of experts in step {step}, layer {layer}: expected {tokens} tokens x top_k {top_k} = "
                    f"{tokens * top_k}, found {sum(counts)}")
    return ""


def arrays(said, tolerance):
    """What `p3d checkpoint diff` said."""
    found = re.search(r"arrays? compared: largest difference (\S+) at (.*)", said)
    if re.search(r"arrays? compared: both files have the same state", said):
        return ""
    if not found:
        return "p3d checkpoint diff: " + said.strip()[-300:]
    for line in said.splitlines():
        if re.match(r"(step|tokens|next sample|seed|data hash): ", line) or "only in" in line:
            return line
    if not float(found[1]) <= tolerance:
        return f"largest difference of the state {found[1]} at {found[2]}, expected at most {tolerance}"
    return ""


def tensors(folder):
    """{name: numbers} of all safetensors of a folder, whatever their order."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        blob = path.read_bytes()
        size = struct.unpack("<Q", blob[:8])[0]
        for name, entry in json.loads(blob[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + n for n in entry["data_offsets"])
            kind = FORMATS.get(entry["dtype"])
            width = struct.calcsize(kind) if kind else 1
            out[name] = struct.unpack(f"<{(end - begin) // width}{kind or 'B'}", blob[begin:end])
    return out


def models(wanted, found, tolerance):
    """Two exported folders; tolerance 0: the same bytes."""
    a, b = ((folder / "config.json").read_text() for folder in (wanted, found))
    if a != b:
        return f"config.json: expected {a}, found {b}"
    first, second = tensors(wanted), tensors(found)
    if sorted(first) != sorted(second):
        return f"tensors: expected {sorted(first)}, found {sorted(second)}"
    for name, numbers in first.items():
        if len(numbers) != len(second[name]):
            return f"{name}: {len(second[name])} numbers, expected {len(numbers)}"
        for i, (x, y) in enumerate(zip(numbers, second[name])):
            if not (abs(x - y) <= tolerance or x == y):
                return f"{name}[{i}]: expected {x}, found {y}"
    return ""
