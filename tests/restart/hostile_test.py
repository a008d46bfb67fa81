# SPDX-License-Identifier: Apache-2.0
"""Every command refuses checkpoints that were made to hurt: exit code 2, the array or attribute named, on one rank and
several. The fuzzer (tests/fuzz) does the same with thousands of files, below the commands."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unicodedata
import unittest

import restarts
from restarts import checkpoint, tool

PYTHON = next((p for p in (sys.executable, "/usr/bin/python3")
               if subprocess.run([p, "-c", "import h5py"], stderr=subprocess.DEVNULL).returncode == 0), None)
HERE = pathlib.Path(__file__).resolve().parent


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="p3d-hostile-")
        cls.folder = pathlib.Path(cls.temporary.name)
        restarts.write_inputs(cls.folder)
        restarts.train(cls.folder, "1", "run", "run.steps=2", "checkpoint.every=2")
        cls.good = checkpoint("run", 2)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def refused(self, named, *words, ranks=0):
        code, out, err = tool(self.folder, *words, ranks=ranks)
        self.assertEqual(code, 2, f"{words}\n{out}{err}")
        self.assertIn(named, out + err, words)
        if words[:2] != ("checkpoint", "verify"):
            for word in ("expected:", "found:", "where:", "fix:"):
                self.assertEqual(err.count(word), 1, f"{words}\n{err}")

    def refused_by_all(self, path, named, ranks=0, by_resume=None):
        resume = ("input.toml", "run.output_dir=other", "run.steps=3", f"checkpoint.resume={path}")
        for words in (("checkpoint", "show", path), ("checkpoint", "verify", path),
                      ("checkpoint", "diff", self.good, path),
                      ("checkpoint", "diff", path, self.good), ("generate", path, "--tokens", "1"),
                      ("eval", path, "--file", "text.txt"), ("export", path, "exported")):
            self.refused(named, *words, ranks=ranks)
        self.refused(by_resume or named, *resume, ranks=ranks)

    @unittest.skipUnless(PYTHON, "no python3 here has h5py (Debian: python3-h5py)")
    def test_files(self):
        made = self.folder / "made"
        made.mkdir()
        done = subprocess.run([PYTHON, HERE / "make_hostile.py", self.folder / self.good, made],
                              stdout=subprocess.PIPE, text=True, check=True)
        files = [line.split("\t") for line in done.stdout.splitlines()]
        self.assertEqual(len(files), 18)
        victim = made / "victim"
        victim.mkdir()
        for file, named in files:
            with self.subTest(file=file):
                self.refused_by_all(f"made/{file}", named)
                # The same file in a folder of checkpoints: listed, and the others are looked at.
                shelf = self.folder / f"shelf_{file[:-3]}"
                shelf.mkdir()
                (shelf / "restart-00000007.h5").write_bytes((made / file).read_bytes())
                (shelf / "restart-00000002.h5").write_bytes((self.folder / self.good).read_bytes())
                for words in (("ls", shelf), ("prune", shelf, "--keep", "1")):
                    self.refused(named, "checkpoint", *words)
                self.assertEqual(len(list(shelf.iterdir())), 2)
        for keys in (("checkpoint.resume=made/position.h5",), ("checkpoint.resume=auto", "checkpoint.dir=moved")):
            (self.folder / "moved").mkdir(exist_ok=True)
            (self.folder / "moved/restart-00000001.h5").write_bytes((made / "position.h5").read_bytes())
            self.refused("position in the data: step 1", "input.toml", "run.output_dir=other", "run.steps=3", *keys)
        # The arrays are compared before memory is taken by what the input says.
        for file, named in (("vocabulary.h5", "found:    embed.token.weight of [257, 24]"),
                            ("layers.h5", "found:    132 arrays for 65536 layers")):
            words = ("eval", f"made/{file}", "--file", "text.txt")
            with self.subTest(words=words):
                self.refused(named, *words)
                self.assertLess(restarts.tool_memory(self.folder, *words), 300 << 20)
        for file, named in (files[0], files[3], files[14]):
            with self.subTest(file=file, ranks=2):
                self.refused_by_all(f"made/{file}", named, ranks=2)
        self.assertEqual(list(victim.iterdir()), [])
        self.assertFalse((self.folder / "exported").exists())
        self.shows_no_escapes("made/escapes.h5")

    def shows_no_escapes(self, path):
        """Bytes of the file that would change a terminal are shown as text, whatever prints them."""
        (self.folder / "shelf\x1b[2J").mkdir()
        (self.folder / "shelf\x1b[2J" / "a\x1b]0;title\x07-00000002.h5").write_bytes(b"none")
        resume = ("input.toml", "run.output_dir=other", "run.steps=3", f"checkpoint.resume={path}")
        shown = ""
        for words in (("checkpoint", "show", path), ("checkpoint", "show", "--input", path),
                      ("checkpoint", "diff", self.good, path), ("generate", path, "--tokens", "1"),
                      ("eval", path, "--file", "text.txt"), ("export", path, "exported"), resume,
                      ("checkpoint", "ls", "shelf\x1b[2J")):
            _, out, err = tool(self.folder, *words)  # what is not UTF-8 is U+FFFD here
            for character in out + err:
                self.assertTrue(character in "\n\t" or
                                (unicodedata.category(character) not in ("Cc", "Cf") and character != "\ufffd"),
                                f"{words}: {character!r}")
            shown += out + err
        for text in ("\\xc2\\x9b2J\\x9b2J", "\\xe2\\x80\\xae", "\\x1b]0;title\\x07"):
            self.assertIn(text, shown)

    def test_no_regular_files(self):
        os.mkfifo(self.folder / "fifo")
        (self.folder / "empty").mkdir()
        for path, named in (("fifo", "a FIFO"), ("empty", "a folder"), ("/dev/zero", "a device"),
                            ("/dev/null", "a device")):
            with self.subTest(path=path):
                self.refused_by_all(path, named, by_resume=f"no file {self.folder / path}")


if __name__ == "__main__":
    unittest.main()
