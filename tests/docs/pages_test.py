# SPDX-License-Identifier: Apache-2.0
"""The pages by themselves: links and their anchors, the length of the README, the list of pages of the site, keys that
are named, figures and the CSVs that they are from. With mkdocs: the site builds, its links lead somewhere, and it loads
nothing from elsewhere."""
import csv
import html.parser
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import unittest
import urllib.parse

import pages
from pages import ROOT

MOST_WORDS = 1200


class Pages(unittest.TestCase):
    def test_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().split()), MOST_WORDS)

    def test_readme_keeps_the_two_commands(self):
        lines = (ROOT / "README.md").read_text().splitlines()
        for command in ("scripts/quickstart.sh", "scripts/test.sh"):
            self.assertTrue(any(line.split(" #")[0].strip() == command for line in lines), command)
            self.assertTrue((ROOT / command).is_file())

    def test_links(self):
        for page in pages.all_pages():
            for target in pages.LINK.findall(pages.prose(page.read_text())):
                if re.match(r"https?:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                with self.subTest(page=page.name, target=target):
                    self.assertTrue(file.is_file(), "no such file")
                    if anchor:
                        self.assertIn(anchor, pages.slugs(file.read_text()))

    def test_words_are_those_of_the_field(self):
        """Validation split, GEMM, error, replica, all-reduce, interleave: in the pages, the inputs and what the program
        says."""
        private = re.compile(r"held[- ]out|holds? out|matrix products?|products of blocks|\bfaults?\b|"
                             r"copies of the model|sums over (?:ranks|tp)|tak(?:es?|ing) turns|taken away|passed over",
                             re.IGNORECASE)
        self.assertTrue(private.search("a fault in the input"))
        texts = {page.name: re.sub(r"`[^`\n]*`", "", pages.prose(page.read_text())) for page in pages.all_pages()}
        texts |= {path.name: path.read_text() for path in (ROOT / "inputs").rglob("*.*")}
        texts |= {words: pages.program_says(*words.split()) for words in ("--help", "--help-input", "schedule --help")}
        for name, text in texts.items():
            with self.subTest(text=name):
                self.assertIsNone(private.search(text))

    def test_paths_that_are_named_exist(self):
        """Of the repository, and public headers; a name with < or * stands for several, one with { is written out."""
        checked = 0
        for page in pages.all_pages():
            for code in pages.CODE.findall(pages.prose(page.read_text())):
                path = re.match(r"(?:(?:src|include|tests|scripts|benchmarks|inputs|docs|spack|cmake)/|p3d/\w+/)\S*$",
                                code)
                if not path or re.search("[<>*{]", code):
                    continue
                checked += 1
                with self.subTest(page=page.name, path=code):
                    self.assertTrue((ROOT / code).exists() or (ROOT / "include" / code).is_file())
        self.assertGreater(checked, 60)

    def test_names_stand_in_their_files(self):
        """Tables "| ... | file | name |": each name is in a file, or in a folder, of its row."""
        checked = 0
        for page in pages.all_pages():
            for head, *rows in pages.tables(page.read_text()):
                if head[1:] != ["file", "name"]:
                    continue
                for what, files, names in rows:
                    paths = [ROOT / ("include" if code.startswith("p3d/") else "") / code
                             for code in pages.CODE.findall(files)]
                    text = "".join(path.read_text() for top in paths
                                   for path in ([top] if top.is_file() else sorted(top.rglob("*.?pp"))))
                    for name in pages.CODE.findall(names):
                        checked += 1
                        with self.subTest(page=page.name, row=what, name=name):
                            self.assertTrue(re.search(rf"\b{re.escape(name)}\b", text), "not in its file")
        self.assertGreater(checked, 30)

    def test_worked_diffs_fit_the_files(self):
        """Lines that stay or go in a diff of docs/contribute.md are those of the file that it names."""
        checked = 0
        for block in re.findall(r"(?ms)^```diff\n(.*?)^```$", (ROOT / "docs/contribute.md").read_text()):
            file = None
            for line in block.splitlines():
                if name := re.match(r" // ([\w/.]+)", line):
                    file = {" ".join(there.split()) for there in (ROOT / name[1]).read_text().splitlines()}
                elif line[0] in " -":
                    checked += 1
                    with self.subTest(line=line):
                        self.assertIn(" ".join(line[1:].split()), file)
        self.assertGreater(checked, 5)

    def test_every_page_is_in_the_site(self):
        named = set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
        self.assertEqual(named, {page.name for page in (ROOT / "docs").glob("*.md")})

    def test_keys_that_are_named_exist(self):
        known = pages.keys()
        sections = {key.split(".")[0] for key in known}
        files = {path.name for path in ROOT.rglob("*.*") if "build" not in path.parts} | {"config.json", "model.h5"}
        for page in pages.all_pages():
            if page.name in ("contribute.md", "model_files.md"):  # keys to come, and those of other programs
                continue
            for code in pages.CODE.findall(pages.prose(page.read_text())):
                found = re.match(r"([a-z]+)((?:\.[a-z_0-9]+)+)(?=[ =]|$)", code)
                if not found or found[1] not in sections or found[0] in files:
                    continue
                if found[2].rsplit(".", 1)[1] in ("json", "h5", "safetensors", "csv", "toml", "source", "moe"):
                    continue
                with self.subTest(page=page.name, key=found[0]):
                    self.assertIn(found[0], known)

    def test_every_comment_of_a_page_is_known(self):
        for page in pages.all_pages():
            marks = len(re.findall(r"(?m)^<!-- (?:runnable|writes|prints)\b", page.read_text()))
            self.assertEqual(marks, len(pages.marked_blocks(page)), page.name)


def rows_of(path):
    lines = [line for line in (ROOT / path).read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


class Figures(unittest.TestCase):
    def table(self, page, head):
        found = [t for t in pages.tables((ROOT / page).read_text()) if t[0][0] == head]
        self.assertEqual(len(found), 1, f"one table of {head} in {page}")
        return found[0]

    def shown(self, text, value):
        """As many digits as are shown."""
        digits = len(text.partition(".")[2])
        self.assertAlmostEqual(float(text), float(value), delta=0.5001 * 10**-digits)

    def test_kernels(self):
        head, *rows = self.table("docs/performance.md", "kernel")
        measured = {row["kernel"]: row for row in rows_of("benchmarks/example_results/kernels.csv")}
        self.assertEqual({row[0] for row in rows}, set(measured))
        names = ("milliseconds", "GB/s", "of_triad", "GFLOP/s", "of_product", "roof")
        columns = dict(zip(head[1:], names, strict=True))
        for row in rows:
            for name, text in zip(head[1:], row[1:]):
                with self.subTest(kernel=row[0], column=name):
                    self.shown(text, measured[row[0]][columns[name]])

    def test_commits_are_those_of_the_stamps(self):
        for figures, command, commit, link in self.table("docs/performance.md", "figures")[1:]:
            with self.subTest(figures=figures):
                path = re.search(r"\(\.\./(.*)\)", link)[1]
                stamp = (ROOT / path).read_text().split("\n\n")[0]
                self.assertIn(f"(git {commit})", stamp)
                self.assertIn(pathlib.Path(path).stem, command)

    def test_peers(self):
        rows = rows_of("benchmarks/example_results/peers.csv")

        def median(name, column):
            tokens, machine = column.split(" tokens, ")
            return statistics.median(float(row[name]) for row in rows
                                     if (row["seq_len"], row["machine"]) == (tokens, machine))

        names = {"eager": "ratio_eager", "compiled": "ratio_compiled", "DDP, eager": "ratio_ddp",
                 "DDP, compiled": "ratio_ddp_compiled", "p3d, tokens/s": "p3d", "p3d, MFU": "mfu"}
        machines = set()
        for page, title in (("docs/performance.md", "PyTorch"), ("docs/performance.md", "PyTorch, AdamW as a loop"),
                            ("README.md", "PyTorch")):
            head, *table = self.table(page, title)
            self.assertLessEqual({"compiled", "DDP, compiled"}, {row[0] for row in table})
            machines |= {column.split(", ")[1] for column in head[1:]}
            for row in table:
                for column, text in zip(head[1:], row[1:], strict=True):
                    with self.subTest(page=page, row=row[0], column=column):
                        if text == "-":  # one core has no peers
                            self.assertIn("one core", column)
                        else:
                            self.shown(text, median(names[row[0]], column))
        self.assertEqual({row["machine"] for row in rows}, machines)

    def test_a_gpu(self):
        for length in ("2048", "8192"):
            measured = {}
            for row in rows_of("benchmarks/example_results/gpu_h200/steps.csv"):
                form = "compiled" if row["program"].startswith("PyTorch") else row["form"]
                if row["seq_len"] == length:
                    measured[f"{row['program'].split()[0]}, {form}"] = row
            head, *rows = self.table("docs/performance.md", f"one H200, {length} tokens")
            self.assertEqual({row[0] for row in rows}, set(measured))
            for row in rows:
                for column, text in zip(head[1:], row[1:], strict=True):
                    self.shown(text, measured[row[0]][column])

    def test_all_reduces_between_hosts(self):
        share = {(row["hosts"], row["bytes"], row["algorithm"]): float(row["share_of_link"])
                 for row in rows_of("benchmarks/example_results/allreduce_nodes.csv")}
        _, *rows = self.table("docs/performance.md", "hosts")
        self.assertEqual({row[0] for row in rows}, {hosts for hosts, _, _ in share})
        for hosts, *texts in rows:
            sizes = [str(2**k) for k in (20, 22, 24, 26)]
            found = [share[hosts, size, "auto"] for size in sizes]
            found += [max(share[hosts, size, name] for name in ("mpi", "mpi-blocking")) for size in sizes]
            for text, value in zip(texts, found, strict=True):
                self.shown(text, value)

    def test_scaling(self):
        speed = {row["name"]: float(row["tokens_per_s"])
                 for row in rows_of("benchmarks/example_results/scaling.csv")}
        names = {"dp = 4": "strong dp 4", "dp = 2, tp = 2": "strong dp x tp 4", "tp = 4": "strong tp 4",
                 "dp = 2, pp = 2": "strong dp x pp 4", "pp = 4": "strong pp 4"}
        rows = [t for t in pages.tables((ROOT / "docs/scale.md").read_text()) if t[0][1] == "tokens/s"][0][1:]
        self.assertEqual({row[0] for row in rows}, set(names))
        for layout, tokens, ratio in rows:
            self.shown(tokens, speed[names[layout]])
            self.shown(ratio, speed[names[layout]] / speed["strong dp 4"])
        readme = " ".join((ROOT / "README.md").read_text().split())
        said = re.search(r"tp = 4 reaches ([\d.]+) of dp = 4, dp = 2 with tp = 2 reaches ([\d.]+), pp = 4 reaches "
                         r"([\d.]+) \(`benchmarks/example_results/scaling.csv`\)", readme)
        for text, name in zip(said.groups(), ("strong tp 4", "strong dp x tp 4", "strong pp 4")):
            self.shown(text.rstrip("."), speed[name] / speed["strong dp 4"])


TAGS = set("html head meta title link script style body div nav ul ol li a span i button form input label h1 h2 h3 h4 "
           "h5 p pre code table thead tbody tr th td strong em img footer hr br b kbd svg small details summary dl dt "
           "dd blockquote".split())


class Html(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.tags = [], [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        have = dict(attributes)
        self.tags.add(tag)
        self.anchors |= {have[name] for name in ("id", "name") if have.get(name)}
        if tag == "a" and have.get("href"):
            self.links.append(have["href"])
        for name in ("src", "href"):
            if tag in ("script", "link", "img", "iframe", "source") and have.get(name):
                self.loads.append(have[name])


@unittest.skipUnless(shutil.which("mkdocs"), "no mkdocs here (Debian: mkdocs)")
class Site(unittest.TestCase):
    def test_site(self):
        with tempfile.TemporaryDirectory(prefix="p3d-site-") as name:
            done = subprocess.run(["mkdocs", "build", "--strict", "--site-dir", name], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            site = pathlib.Path(name)
            read = {path: Html(path.read_text()) for path in site.rglob("*.html")}
            self.assertGreater(len(read), 20)
            for path, page in read.items():
                self.assertEqual(page.tags - TAGS, set(), f"{path.name}: a < of the text became a tag")
                for target in page.loads:
                    self.assertFalse(re.match(r"(https?:)?//", target), f"{path.name} loads {target}")
                for target in page.links + page.loads:
                    self.lead_somewhere(site, read, path, target)

    def lead_somewhere(self, site, read, path, target):
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or target in ("#", "/") or path.name == "404.html":
            return
        file = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path not in ("", ".") else path
        if file.is_dir():
            file /= "index.html"
        self.assertTrue(file.is_file(), f"{path.name}: {target}")
        if parts.fragment and file in read and not parts.fragment.startswith("mkdocs_"):
            self.assertIn(parts.fragment, read[file].anchors, f"{path.name}: {target}")


if __name__ == "__main__":
    unittest.main()
