# SPDX-License-Identifier: Apache-2.0
"""p3d data: what is in files of tokens, and what is wrong with them."""
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

import program

REFERENCE = program.SOURCE / "tests" / "unit" / "data" / "reference"  # written by make_megatron_order.py with numpy
IDS = [0, 1, 2, 100, 127, 5, 6, 7, 8, 9, 10, 11]


class Data(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-data-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def data(self, *words, code=0):
        done = subprocess.run([program.PROGRAM, "data", *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=program.PATIENCE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def copy(self, name):
        for end in (".bin", ".idx"):
            shutil.copy(REFERENCE / (name + end), self.folder / ("x" + end))
        return self.folder / "x"

    def patch(self, end, offset, data):
        with open(self.folder / ("x" + end), "r+b") as file:
            file.seek(offset)
            file.write(data)

    def test_show(self):
        out = self.data("show", *(REFERENCE / n for n in ("megatron-int16", "uint32.npy", "llmc-1.bin", "order.dat")))
        for row in (r"megatron +int16 +12 +3 +4 +138 B +[0-9a-f]{16} +\S+megatron-int16",
                    r"npy +uint32 +12 +- +- +176 B ", r"llmc +uint16 +12 +- ", r"text +uint8 +\d+ +- "):
            self.assertRegex(out, f"(?m)^{row}")
        self.assertIn("an array of numpy", self.data("show", REFERENCE / "order.dat", "--format", "npy", code=2))
        self.assertIn("No such file", self.data("show", "nothing", code=2))

    def test_head(self):
        out = self.data("head", REFERENCE / "megatron-int64.bin", "--documents", 2, "--tokens", 3)
        self.assertEqual(re.findall(r"ids: (.*)", out), ["0 1 2 ...", "127 5 6"])
        (self.folder / "text").write_bytes(b"one\ntwo")
        out = self.data("head", "text", "--tokenizer", "bytes")
        self.assertIn("ids: 111 110 101 10 116 119 111\n", out)
        self.assertIn("text: one\\ntwo\n", out)

    def test_check(self):
        x = self.copy("order-0")
        self.assertIn("x.bin, 1321 tokens (int32), 40 documents: good", self.data("check", x))
        out = self.data("check", x, "--vocab", 1300, code=2)
        self.assertEqual(out.count("expected token ids from 0 to 1299"), 20)
        self.assertIn("x.bin, token 1300, byte 5200, document 39: ", out)
        self.assertIn("and 1 error more", out)
        # Two sizes, two starts of documents and a token: a walk finds all, an open file the first.
        self.patch(".bin", 400, struct.pack("<i", -7))
        self.patch(".idx", 34 + 4 * 7, struct.pack("<i", -1))
        self.patch(".idx", 34 + 12 * 40 + 8 * 20, struct.pack("<q", 41))
        out = self.data("check", x, code=2)
        for place in ("x.idx, byte 62: sequence 7 of 40", "document 19 of 40", "document 20 of 40",
                      "x.bin, token 100, byte 400, document "):
            self.assertIn(place, out)
        self.assertEqual(out.count("expected"), 4, out)
        self.assertIn("x.idx, byte ", self.data("show", x, code=2))
        self.patch(".idx", 9, b"\2")
        self.assertIn("byte 9: expected version 1 of the index, found version 2", self.data("check", x, code=2))

    def test_stats(self):
        out = self.data("stats", REFERENCE / "megatron-uint8", "--eod", 127, "--top", 1)
        self.assertIn("tokens per document   min 3, median 4, mean 4.0, max 5", out)
        self.assertRegex(out, r"2 to 3 +1 +#+\n +4 to 7 +2 +#+")
        self.assertIn("12 different ones, the highest 127", out)
        self.assertIn("end of document (127)   1 (8.333 %)", out)
        out = self.data("stats", REFERENCE / "int8.npy", "--eod", 127, "--top", 1)
        self.assertIn("min 5, median 5, mean 6.0, max 7", out)
        self.assertRegex(out, r"most frequent ids\n +0 +1 +8.333 %\n$")


if __name__ == "__main__":
    unittest.main()
