#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of p3d's tokenizers with that of the libraries that their files are made for, on one core.

usage: tokenizer_rate.py PROGRAM TEXT TOKENIZER[:PATTERN]... [--rounds 3]

Needs the packages tokenizers, tiktoken or sentencepiece. Both run in turn, the best of each counts. The library encodes
documents of 200,000 characters that are in memory already; `p3d data tokenize --threads 1` starts, reads them as JSON
lines and writes a dataset, and all of that counts.
"""
import argparse
import base64
import json
import os
import pathlib
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def pattern_of(name):
    """As tiktoken has it, where it does."""
    import tiktoken_ext.openai_public as known
    if name == "gpt2":
        return known.r50k_pat_str
    return {"llama3": rf"{LETTERS}|\p{{N}}{{1,3}}|{END}", "qwen2": rf"{LETTERS}|\p{{N}}|{END}"}[name]


def reference(path, pattern):
    """text -> ids"""
    if path.endswith(".json"):
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(path)
        tokenizer.encode_special_tokens = True
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if path.endswith(".model"):
        import sentencepiece
        return sentencepiece.SentencePieceProcessor(model_file=path).encode
    import tiktoken
    lines = [line.split() for line in pathlib.Path(path).read_text().splitlines()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("file", pat_str=pattern_of(pattern), mergeable_ranks=ranks,
                             special_tokens={}).encode_ordinary


def timed(work):
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("text")
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    text = pathlib.Path(options.text).read_bytes().decode(errors="replace")
    documents = [text[i:i + 200_000] for i in range(0, len(text), 200_000)]
    size = sum(len(document.encode()) for document in documents) / 1e6
    print(f"{size:.1f} MB in {len(documents)} documents, MB/s")
    print(f"{'tokenizer':<24} {'library':>9} {'p3d':>9} {'ratio':>7}  tokens")
    for words in options.tokenizers:
        path, _, pattern = words.partition(":")
        encode = reference(path, pattern)
        best = {"library": 1e9, "p3d": 1e9}
        with tempfile.TemporaryDirectory(prefix="p3d-bench-") as folder:
            lines = pathlib.Path(folder, "text.jsonl")
            with open(lines, "w") as file:
                file.writelines(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents)
            command = [options.program, "data", "tokenize", lines, "--tokenizer", path, "--out", f"{folder}/out",
                       "--threads", "1", "--no-eod", "--dtype", "i32"] + (["--pattern", pattern] if pattern else [])
            for _ in range(options.rounds):
                for end in (".bin", ".idx"):
                    pathlib.Path(folder, "out" + end).unlink(missing_ok=True)
                seconds, ids = timed(lambda: [encode(document) for document in documents])
                best["library"] = min(best["library"], seconds)
                seconds, _ = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
                best["p3d"] = min(best["p3d"], seconds)
            tokens = sum(len(part) for part in ids)
            same = tokens == pathlib.Path(folder, "out.bin").stat().st_size // 4
        rate = {name: size / seconds for name, seconds in best.items()}
        print(f"{pathlib.Path(path).name + ' ' + pattern:<24} {rate['library']:9.2f} {rate['p3d']:9.2f} "
              f"{rate['p3d'] / rate['library']:7.2f}  {tokens}{'' if same else ', p3d has another number'}", flush=True)


if __name__ == "__main__":
    main()
