# SPDX-License-Identifier: Apache-2.0
"""The files that cases name: texts, token files of every format, tokenizers, models in Hugging Face form.

All but the models and the tokenizer are written here, byte by byte (docs/data.md), the same on every machine; p3d
makes the others."""
import base64
import pathlib
import struct

from draw import Draw

WORDS = ("the licence of a rank is a permission that you may use copy and change with notice or without warranty as is "
         "for each work in source form under these terms no more than one token").split()
SEED_KEYS = ["run.steps=2", "run.ceiling=false", "run.eval_batches=0", "data.format=synthetic", "checkpoint.every=2",
             "optimizer.lr=0.01", "run.precision=fp64"]
# As LOADED in models.py says.
MODELS = {
    "gpt": ["model.preset=gpt2-tiny", "model.hidden=16", "model.layers=2", "model.heads=4", "model.ffn=32",
            "model.kv_heads=4", "model.seq_len=33"],
    "llama": ["model.preset=llama-tiny", "model.hidden=16", "model.layers=4", "model.heads=4", "model.kv_heads=2",
              "model.ffn=24", "model.seq_len=32"],
    "qwen2": ["model.preset=llama-tiny", "model.hidden=18", "model.layers=2", "model.heads=4", "model.kv_heads=2",
              "model.head_dim=6", "model.qkv_bias=true", "model.ffn=24", "model.seq_len=32"],
    "mixtral": ["model.preset=mixtral-tiny", "model.hidden=16", "model.layers=2", "model.heads=4", "model.kv_heads=4",
                "model.ffn=12", "model.moe.ffn=12", "model.moe.experts=4", "model.seq_len=33",
                "model.moe.aux_loss=none"],
    "qwen": ["model.preset=qwen-moe-tiny", "model.hidden=16", "model.layers=2", "model.heads=4", "model.kv_heads=4",
             "model.ffn=12", "model.moe.ffn=6", "model.moe.experts=4", "model.moe.top_k=2", "model.moe.shared_ffn=8",
             "model.seq_len=32", "model.moe.aux_loss=none"],
}


# Two cores a node. Small times of everything, so that each part of a step counts for small models.
CLUSTER = """name = "two cores a node"
device = {fp64 = 1e10, fp32 = 2e10, bf16 = 1e10, fp16 = 1e10, memory = 1e9, bandwidth = 1e10, launch = 1e-6}
level = [{name = "node", size = 2, bandwidth = 4e9, latency = 1e-6},
         {name = "network", bandwidth = 1e9, latency = 1e-5}]
"""


def text(draw, words):
    lines, line = [], []
    for _ in range(words):
        line.append(draw.among(*WORDS))
        if len(line) > 4 and draw.chance(0.3):
            lines.append(" ".join(line).capitalize() + ".")
            line = []
    return "\n".join(lines) + "\n"


def documents(draw, number, vocabulary):
    """Lists of tokens that end with 0, most of them short."""
    return [[1 + draw.below(vocabulary - 1) for _ in range(draw.among(1, 3, 7, 15, 16, 31, 40, 90))] + [0]
            for _ in range(number)]


def write_pair(prefix, docs, kind, code):
    """Megatron's pair, version 1."""
    size = struct.calcsize(kind)
    prefix.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(doc)}{kind}", *doc) for doc in docs))
    at, begins = 0, []
    for doc in docs:
        begins.append(at)
        at += len(doc) * size
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(docs), len(docs) + 1)
    body = struct.pack(f"<{len(docs)}i{len(docs)}q{len(docs) + 1}q", *map(len, docs), *begins, *range(len(docs) + 1))
    prefix.with_suffix(".idx").write_bytes(head + body)


def write_npy(path, tokens, kind, code):
    shape = f"({len(tokens)},)"
    head = f"{{'descr': '<{code}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
                     + struct.pack(f"<{len(tokens)}{kind}", *tokens))


def write_llmc(path, tokens, kind, magic, version):
    head = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    path.write_bytes(head + struct.pack(f"<{len(tokens)}{kind}", *tokens))


def write_tiktoken(path):
    """256 bytes and 45 pairs, in the order of their ranks."""
    entries = [bytes([i]) for i in range(256)]
    pairs = sorted({word[i:i + 2].encode() for word in WORDS for i in range(len(word) - 1)})
    entries += pairs[:45]
    path.write_text("".join(f"{base64.b64encode(entry).decode()} {rank}\n" for rank, entry in enumerate(entries)))


def make(starter):
    """Makes what is missing in the starter's folder; `done` is made last."""
    folder = pathlib.Path(starter.folder)
    if (folder / "done").exists():
        return
    for name in ("texts", "pairs", "models"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    draw = Draw("fixtures")
    for name, words in (("text.txt", 700), ("more.txt", 300), ("texts/a.txt", 400), ("texts/b.txt", 90)):
        (folder / name).write_text(text(draw, words))
    small, wide = documents(draw, 90, 61), documents(draw, 60, 61)
    write_pair(folder / "tokens", small, "H", 8)
    write_pair(folder / "wide", wide, "i", 4)
    write_pair(folder / "pairs/a", small[:50], "H", 8)
    write_pair(folder / "pairs/b", wide[:40], "B", 1)
    write_pair(folder / "words", documents(draw, 80, 301), "i", 4)
    flat = [[token for doc in docs for token in doc] for docs in (small, wide)]
    write_npy(folder / "tokens.npy", flat[0], "H", "u2")
    write_npy(folder / "wide.npy", flat[1], "q", "i8")
    write_llmc(folder / "tokens.llmc", flat[0], "H", 20240520, 1)
    write_llmc(folder / "wide.llmc", flat[1], "I", 20240801, 7)
    write_tiktoken(folder / "words.tiktoken")
    must(starter, ["tokenizer", "train", "text.txt", "--vocab-size", 301, "--out", "words.json"], folder / "words.json")
    for name, keys in MODELS.items():
        if not (folder / "models" / name).exists():
            must(starter, [*SEED_KEYS, *keys, f"run.output_dir=made/{name}", f"run.name={name}"], None)
            must(starter, ["export", f"made/{name}/checkpoints/{name}-00000002.h5", f"models/{name}"], None)
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "done").write_text("")


def must(starter, arguments, path):
    if path is not None and path.exists():
        return
    done = starter.run(arguments)
    if done.code != 0:
        raise SystemExit(f"{done.line}: exit code {done.code}\n{done.out}")
