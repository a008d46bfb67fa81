# SPDX-License-Identifier: Apache-2.0
"""Draws [data], [sample], the rest of [run] and [batch], and the acts after a run."""

# Folders and files that fixtures.py makes, by format; tokens are below 61 where the format is not text.
PATHS = {
    "text": ("text.txt", ["text.txt", "more.txt"], "texts"),
    "megatron": ("tokens", "tokens.bin", ["tokens", "wide"], "pairs"),
    "llmc": ("tokens.llmc", ["tokens.llmc", "wide.llmc"]),
    "npy": ("tokens.npy", ["tokens.npy", "wide.npy"]),
}
EOD = 0  # ends every document of the token files


def data(f):
    d = f.draw
    kind = d.weighted({"text": 3, "megatron": 6, "llmc": 1, "npy": 1})
    if kind == "text" and f.vocab < 256:
        kind = "megatron"
    f.set(data__format=kind)
    path = d.among(*PATHS[kind])
    if d.chance(0.25):
        first, second = {"text": ("text.txt", "more.txt"), "megatron": ("tokens", "wide"),
                         "llmc": ("tokens.llmc", "wide.llmc"), "npy": ("tokens.npy", "wide.npy")}[kind]
        weights = d.among((1, 1), (3, 1), (1, 2.5))
        tables = [f'{{path = "{path}", weight = {weight}}}' for path, weight in zip((first, second), weights)]
        f.set(data__source=f"[{', '.join(tables)}]")
    else:
        f.set(data__path=path)
    if kind == "megatron":
        f.set(data__shuffle=d.weighted({"windows": 3, "documents": 4, "megatron": 3, "whole_documents": 2}))
        if d.chance(0.25) and f.vocab == 256 and not f.has("model.load"):
            tokenizer(f)
    if d.chance(0.3):
        f.set(data__split=d.among("0.0", "0.3"))
    if d.chance(0.5):
        documents(f, kind)


def tokenizer(f):
    """Tokens of a vocabulary of its own, and the file that made them."""
    d = f.draw
    f.vocab = d.among(301, 304)
    f.keys.pop("data.source", None)
    f.set(model__vocab_size=f.vocab, data__path="words")
    if d.chance(0.3):
        f.set(data__tokenizer="words.json")
    else:
        f.set(data__tokenizer="words.tiktoken", data__tokenizer_pattern=d.among("gpt2", "cl100k", "o200k", "llama3",
                                                                                "qwen2"))


def documents(f, kind):
    """What the end of a document means."""
    d = f.draw
    if kind in ("llmc", "npy") or d.chance(0.6):
        f.set(data__eod_token=10 if kind == "text" else EOD)
    if f.has("data.eod_token") and d.chance(0.5):
        f.set(data__eod_mask_loss=d.chance(0.8), data__reset_positions=d.chance(0.6))
    elif kind in ("text", "megatron") or f.has("data.eod_token"):
        f.set(data__pack=True)


def variable(f):
    if f.experts or f.get("data.pack") == "true":
        return
    if any(key.startswith("memory.offload_activations") for key in f.keys):
        return
    f.keys.pop("data.source", None)
    f.set(batch__variable=True, data__format="megatron", data__shuffle="documents")
    if f.get("data.path") not in ("tokens", "tokens.bin", "pairs", "words"):
        f.set(data__path="tokens")


def sample(f):
    """Text of the model at the end; tokens that are bytes want a vocabulary of 256."""
    d = f.draw
    words = f.has("data.tokenizer")
    if f.vocab != 256 and not words:
        return
    f.set(sample__tokens=d.among(1, 7, 40))
    f.set(sample__temperature=d.among("0.0", "0.0", "0.7", "1.5"))
    for change in d.shuffled(("prompt", "top_k", "top_p", "stop"))[:d.below(4)]:
        if change == "prompt":
            f.set(sample__prompt=d.among("A licence", "x", "a longer prompt than the model has tokens, to be cut"))
        elif change == "top_k":
            f.set(sample__top_k=d.among(1, 5))
        elif change == "top_p":
            f.set(sample__top_p=d.among("0.5", "0.9"))
        else:
            f.set(sample__stop=["ab", "zzz"])


def evaluation(f):
    d = f.draw
    f.set(run__eval_batches=d.among(1, 2, 3), run__eval_every=d.among(0, 1, 2))


def run(f):
    d = f.draw
    changes = ("seed", "file", "steps", "trace", "limit", "log", "name", "sums", "ceiling", "dir")
    for change in d.shuffled(changes)[:1 + d.below(3)]:
        if change == "seed":
            f.set(run__seed=d.among(0, 7, 123456789))
        elif change == "steps":
            f.set(run__steps=d.among(1, 2, 4, 5))
        elif change == "file":
            f.set(run__file_timeout_s=d.among("40.0", "1000.0"))
        elif change == "trace":
            f.set(run__trace=True)
        elif change == "limit":
            f.set(run__time_limit="2h")
        elif change == "log":
            f.set(run__log_every=d.among(2, 10), timers__level=d.among(0, 1, 2), timers__barrier=d.among(True, False))
        elif change == "name":
            f.set(run__name=d.among("case", "a name", "x" * 100))
        elif change == "sums":
            f.set(run__deterministic=False)
        elif change == "ceiling":
            f.set(run__ceiling=f.draw.chance(0.2))
        elif change == "dir":
            f.set(run__output_dir="@", checkpoint__dir="@")  # the harness puts its folder in place of @


def repeat(f):
    if f.get("run.deterministic") != "false":
        f.acts["@repeat"] = "1"


def weights(f):
    """Start from the weights of another run of the same model."""
    if not f.has("model.load") and f.get("checkpoint.resume") is None:
        f.acts["@weights"] = "1"
        f.set(checkpoint__load="weights", checkpoint__resume="@weights")


def after(f, what):
    """p3d eval, generate or export of the last checkpoint, on some ranks."""
    d = f.draw
    number = d.among(1, 1, 2, 4)
    f.acts[f"@{what}"] = str(number)
    if what == "export" or number == 1:
        return
    axis = d.among("dp", "tp", "pp", "cp")
    size = 2 if axis != "pp" or f.layers < 4 else number
    if axis == "tp" and (f.kv_heads % 2 or f.experts) or axis == "pp" and f.layers < size:
        axis = "dp"
    if axis != "dp":
        f.acts[f"@{what}.parallel.{axis}"] = str(size)
