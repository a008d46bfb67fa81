#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of tokenizers/: small tokenizers, texts, and the tokens that other libraries make of them.

usage: make_tokenizers.py FOLDER      needs the packages tokenizers, tiktoken, sentencepiece, regex and xxhash

  fragments.hex    pieces of text, one a line, from which training text and the long text are drawn
  cases.hex        texts to compare, one a line; some are no UTF-8
  NAME.json, ranks.tiktoken, NAME.model
  NAME.ids         what the library of the file makes of each case: a line of ids
  hashes.txt       xxHash64 of the ids (int32, little endian) of the long text; long.hpp draws the same text
What is no UTF-8: libraries that take text only are given U+FFFD for each maximal part of a character. Of byte-level
tokenizers they then say where words end, and what tokens the bytes of a word are.
"""
import base64
import io
import json
import pathlib
import sys

import regex
import sentencepiece
import tiktoken
import xxhash
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + END
QWEN2 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + END
LONG = 1_000_000

WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said what its about
than into them can only other time new some could these two may first then do any like my now over such our man me even
most made after also did many off before must well back through years where much your way down should because long each
just state those people too mister little good world make very year still see own work men day get here old between both
life being under three never know same last another while us might great go come since against right came take used
import return self print value index length string vector const static void while template class public"""
FOREIGN = """été déjà garçon façade naïve cœur über Straße Größe weiß año señor corazón coração irmão ação città perché
Ελληνικά γλώσσα είναι καλημέρα κόσμε русский язык привет мир съешь ещё булок українська їжак български مرحبا بالعالم
اللغة العربية كتاب שלום עולם ספר עברית हिन्दी नमस्ते दुनिया भाषा ภาษาไทย สวัสดี ชาวโลก 中文 你好 世界 汉字 語言 天地玄黃
日本語 こんにちは 世界 カタカナ ひらがな 東京 한국어 안녕하세요 세계 한글 tiếng Việt đường phố žluťoučký kůň pchnąć łódź"""
OTHERS = ["I'm", "I'M", "don't", "DON'T", "we'll", "WE'LL", "they've", "'S", "it's", "'ſ", "’s", " ", "  ",
          "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u180e",
          "\u0085", "\u200b", "\u2028", "\x0b", "\x0c", "\x00", "\x1c", "1", "12", "123", "1234567", "3.14159",
          "१२३", "٣٤٥", "½", "²", "Ⅷ", "1e-9", "e\u0301", "o\u0308\u0323", "a\u0323\u0302", "Å", "\u212b",
          "\ufb01", "カ\u3099", "\u1112\u1161\u11ab", "й", "и\u0306", "क्षि", "\u0300", "👨\u200d👩\u200d👧", "🇫🇷",
          "😀", "❤\ufe0f", "👍🏽", "!", "...", "--", "==", "!=", "->", "();", "{", "}", "[0]", "//", "/*", "*/",
          "\\n", "x = y + 1;", "if (a[i] < 0) {\n    return;\n}\n", "<b>", "&amp;", "<|endoftext|>", "</s>",
          "<s>", "_", "snake_case", "camelCase", "HTMLParser", "İ", "ı", "ß", "ẞ", "ǅ", "ﬀ", "\ufffd", "\ufeff",
          "𝒳", "𐍈", "№", "€5", "$100", " " * 40, "\n" * 9, "0" * 50, "a" * 70, "-" * 33, " ?", " 7"]


def fragments():
    words = WORDS.split() + FOREIGN.split()
    return [" " + w for w in words] + [w.capitalize() for w in words[::3]] + words[::7] + OTHERS


class Draw:
    """The same numbers as in long.hpp."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def draw_text(seed, size):
    """At least `size` bytes."""
    pieces, draw = [f.encode() for f in fragments()], Draw(seed)
    out, length = [], 0
    while length < size:
        out.append(pieces[draw.below(len(pieces))])
        length += len(out[-1])
    return b"".join(out)


def cases():
    draw, pieces = Draw(7), [f.encode() for f in fragments()]
    found = [b"", b" ", b"\xff", b"Hello, World! It's 2024.", b" " * 300 + b"x", b"7" * 200, b"\xc3", b"\xe2\x82x",
             b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf",
             b"\xf0\x9f\x98", b"a\xe2\x82\xacb\xe2\x82", b"\xef\xbf\xbd"]
    for i in range(90):
        text = b"".join(pieces[draw.below(len(pieces))] for _ in range(1 + draw.below(10)))
        if i % 3 == 2:  # bytes that are no UTF-8
            place = draw.below(len(text) + 1)
            text = text[:place] + bytes(128 + draw.below(128) for _ in range(1 + draw.below(3))) + text[place:]
        found.append(text)
    return found


def training_text():
    text = draw_text(3, 400_000).decode()
    return [text[i:i + 2000] for i in range(0, len(text), 2000)]


def train_byte_level(pattern, size, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def train_llama2():
    """Characters, a token for each byte that has none, and no words."""
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # while it is trained
    t.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=150))
    model = json.loads(t.to_str())
    vocab = model["model"]["vocab"]
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    model["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(model))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return t


LETTERS = {}  # of bytes, as byte-level files write them
for number, byte in enumerate(b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174)):
    LETTERS[byte] = chr(256 + number)
LETTERS.update({b: chr(b) for b in range(256) if b not in LETTERS})
BYTES = {letter: byte for byte, letter in LETTERS.items()}


def ranks_of(tokenizer):
    """The merges of a byte-level tokenizer as ranks of tiktoken."""
    ranks = [bytes([b]) for b in range(256)]
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        token = bytes(BYTES[c] for c in left + right)
        if token not in ranks:
            ranks.append(token)
    return {token: rank for rank, token in enumerate(ranks)}


def replaced_parts(data):
    """The bytes behind each U+FFFD of the text: what a decoder replaces, and U+FFFD itself."""
    found = []
    while data:
        try:
            valid, bad, rest = data.decode(), b"", b""
        except UnicodeDecodeError as e:
            valid, bad, rest = data[:e.start].decode(), data[e.start:e.end], data[e.end:]
        found += ["\ufffd".encode()] * valid.count("\ufffd")
        found += [bad] if bad else []
        data = rest
    return iter(found)


def pieces_in_bytes(pieces, data):
    """Words of the text with U+FFFD, with the bytes that were there instead."""
    parts = replaced_parts(data)
    for piece in pieces:
        yield b"".join(next(parts) if c == "\ufffd" else c.encode() for c in piece)


def encode_byte_level(t, data):
    text = data.decode(errors="replace")
    try:
        data.decode()
        return t.encode(text, add_special_tokens=False).ids
    except UnicodeDecodeError:
        pass
    if t.normalizer:
        return None  # the library cannot say it
    words = [bytes(BYTES[c] for c in letters).decode() for letters, _ in t.pre_tokenizer.pre_tokenize_str(text)]
    ids = []
    for word in pieces_in_bytes(words, data):
        ids += [token.id for token in t.model.tokenize("".join(LETTERS[b] for b in word))]
    return ids


def encode_ranks(e, pattern, data):
    text = data.decode(errors="replace")
    try:
        data.decode()
        return e.encode_ordinary(text)
    except UnicodeDecodeError:
        words = regex.findall(pattern, text)
        return [i for word in pieces_in_bytes(words, data) for i in e._encode_single_piece(word)]


def train_sentencepiece(kind):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in training_text()[:100] for line in text.split("\n") if line.strip()),
        model_writer=model, vocab_size=700, model_type=kind, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity",
        hard_vocab_limit=False, minloglevel=2, num_threads=1)
    return model.getvalue()


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    texts, long_text = cases(), draw_text(11, LONG)
    (folder / "fragments.hex").write_text("".join(f.encode().hex() + "\n" for f in fragments()))
    (folder / "cases.hex").write_text("".join(text.hex() + "\n" for text in texts))
    encoders = {}
    trained = {"gpt2": train_byte_level(None, 1300), "llama3": train_byte_level(LLAMA3, 1300, ignore_merges=True),
               "qwen2": train_byte_level(QWEN2, 1000, normalizers.NFC()), "llama2": train_llama2()}
    for name, t in trained.items():
        t.save(str(folder / f"{name}.json"), pretty=False)
        t.encode_special_tokens = True
        if name == "llama2":
            encoders[name] = lambda data, t=t: t.encode(data.decode(errors="replace"), add_special_tokens=False).ids
        else:
            encoders[name] = lambda data, t=t: encode_byte_level(t, data)
    ranks = ranks_of(trained["llama3"])
    (folder / "ranks.tiktoken").write_text(
        "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    e = tiktoken.Encoding("ranks", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    encoders["ranks"] = lambda data: encode_ranks(e, LLAMA3, data)
    for kind in ("bpe", "unigram"):
        model = train_sentencepiece(kind)
        (folder / f"{kind}.model").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        encoders[kind] = lambda data, p=processor: p.encode(data)
    with open(folder / "hashes.txt", "w") as hashes:
        for name, encode in encoders.items():
            lines = [encode(text) for text in texts]
            (folder / f"{name}.ids").write_text(
                "".join(("-" if ids is None else " ".join(map(str, ids))) + "\n" for ids in lines))
            if name == "unigram":
                continue  # which of equally likely divisions is taken depends on the version of the library
            ids = encode(long_text)
            hash_of_ids = xxhash.xxh64(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()
            hashes.write(f"{name} {len(ids)} {hash_of_ids}\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
