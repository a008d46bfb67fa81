# SPDX-License-Identifier: Apache-2.0
"""p3d report: the page of real runs is well-formed, needs nothing beside it, and says what happened."""
import base64
import html.parser
import json
import os
import re
import signal
import time
import unittest
import xml.etree.ElementTree

import program
from program import AppTest

ONE_RANK = ("parallel.dp=1", "parallel.tp=1", "parallel.pp=1", "run.eval_every=2", "run.eval_batches=1")
VOID = {"meta", "input", "img", "br"}
HEADER = "step,tokens,loss,grad_norm,lr,step_ms,tokens_per_s,eval_loss\n"


class Page(html.parser.HTMLParser):
    """The page's elements; every tag that is opened is closed, in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.sources, self.words, self.rows, self.ids = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        attributes = dict(attributes)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.sources += [v for k, v in attributes.items() if k in ("src", "href", "xlink:href", "data", "action")]
        assert not any(name.startswith("on") for name in attributes), attributes
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("tr", "div"):
            self.rows.append([])
        if tag in ("th", "td", "dt", "dd") and self.rows:
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (self.open, tag, self.getpos())
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)
        if self.rows and self.rows[-1] and self.open and self.open[-1] in ("th", "td", "dt", "dd", "code"):
            self.rows[-1][-1] += data

    def row(self, name):
        """The values of a quantity: of a list or of a table."""
        found = [row[1:] for row in self.rows if row and row[0] == name]
        assert len(found) == 1, (name, found, self.rows)
        return found[0]


class Report(AppTest):
    def page(self, *folders):
        run = program.Run(0, ["report", *map(str, folders), "--out", "page.html"], self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        self.assertRegex(run.out, r"^written: page.html \(\d+ runs?, ")
        text = (self.folder / "page.html").read_text()
        page = Page(text)
        self.assertEqual([s for s in page.sources if not s.startswith("data:image/svg+xml;base64,")], [])
        self.assertNotIn("script", page.tags)
        self.assertNotIn("link", page.tags)
        for word in ("http://", "https://", "url(", "@import", "NaN\""):
            self.assertNotIn(word, text)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        for picture in re.findall(r"<svg.*?</svg>", text, re.S):
            xml.etree.ElementTree.fromstring(picture)
        page.text = text
        return page

    def write_run(self, name, rows, files=None):
        folder = self.folder / name
        folder.mkdir()
        (folder / "metrics.csv").write_text(HEADER + "".join(rows))
        for file, text in (files or {}).items():
            (folder / file).write_text(text)
        return folder

    def train(self, *arguments, code=0, ranks=1):
        run = self.run_to_end(ranks, *ONE_RANK, *arguments)
        self.assertEqual(run.code, code, run.out + run.err)
        self.assertEqual(run.err.count("warning"), 2 * (self.results / "summary.json").is_dir(), run.err)
        return run.out

    def summary(self):
        return json.loads((self.results / "summary.json").read_text())

    def refused(self, found, *arguments):
        run = program.Run(0, ["report", *map(str, arguments)], self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual(run.code, 2, run.out + run.err)
        self.assertRegex(run.err, f"(?m)^ *(found|where): +{found}")
        self.assert_once("fix:", run.err)


class RealRuns(Report):
    def test_a_finished_run_with_its_trace(self):
        out = self.train("run.trace=true", "parallel.pp=2", "run.ceiling=true", ranks=2)
        page, summary, last = self.page(self.results), self.summary(), self.metrics()[-1]
        self.assertEqual(page.row("training loss, last step"), [f"{float(last['loss']):.4f}"])
        self.assertTrue(page.row("validation loss, last")[0].startswith(f"{float(last['eval_loss']):.4f} at step 6"))
        self.assertEqual(page.row("state"), ["finished, exit code 0"])
        self.assertEqual(page.row("steps"), ["6 of 6"])
        self.assertEqual(page.row("ranks"), ["2: tp 1, cp 1, pp 2, dp 1"])
        # The numbers are those that the run printed.
        mfu = re.search(r"MFU (\d\.\d\d)", out)[1]
        self.assertEqual(page.row("MFU, median step")[0].split()[0], mfu)
        self.assertAlmostEqual(summary["mfu"], float(mfu), delta=0.0051)
        for phase in summary["phases"]:
            printed = re.search(rf"(?m)^{phase['phase']} +([\d.]+) +([\d.]+) +([\d.]+) ", out)
            for number, key in zip(printed.groups(), ("min_s", "mean_s", "max_s")):
                self.assertAlmostEqual(phase[key], float(number), delta=0.00051)
        named = re.search(r"(?m)^Bottleneck: (.+, [\d.]+ % of the time; what would help: .+)$", out)[1]
        self.assertEqual((summary["bottleneck"], page.row("bottleneck")), (named, [named]))
        memory = re.search(r"Memory of all ranks: (\S+ \S+) predicted, (\S+ \S+) found", out)
        self.assertEqual(page.row("memory, all ranks"), [f"{memory[1]} predicted, {memory[2]} found"])
        # The picture is the file, and the input is shown whole.
        self.assertEqual(base64.b64decode(page.sources[0].partition(",")[2]), (self.results / "trace.svg").read_bytes())
        self.assertIn((self.results / "resolved.toml").read_text(), page.words)
        self.assertIn(summary["program"], page.words)

    def test_a_stopped_run_that_goes_on(self):
        run = self.start_training(1, *ONE_RANK, "checkpoint.every=1000000")
        before = self.page(self.results)
        self.assertEqual(before.row("state"), ["running"])
        self.assertEqual(self.summary()["state"], "running")
        os.kill(run.ranks[0], signal.SIGTERM)
        run.finish()
        self.assertEqual(self.page(self.results).row("state"), ["stopped, exit code 75"])
        steps = len(self.metrics())
        self.train(f"run.steps={steps + 2}", "checkpoint.every=1000000")
        page, summary = self.page(self.results), self.summary()
        self.assertEqual(page.row("state"), ["finished, exit code 0"])
        self.assertEqual([(s["first_step"], s["last_step"], s["state"]) for s in summary["starts"]],
                         [(0, steps, "stopped"), (steps, steps + 2, "finished")])
        self.assertRegex(page.row("wall time")[0], r", in 2 starts$")
        self.assertIn("the run went on here after a stop", page.words)
        text = (self.results / "summary.json").read_bytes()  # nothing left to do: nothing forgotten
        self.train(f"run.steps={steps + 2}", "checkpoint.every=1000000")
        self.assertEqual((self.results / "summary.json").read_bytes(), text)

    def test_a_killed_run(self):
        run = self.start_training(1, *ONE_RANK)
        run.kill()
        self.assertEqual(self.summary()["state"], "running")
        old = time.time() - 3600
        os.utime(self.results / ".p3d.lock", (old, old))
        self.assertEqual(self.page(self.results).row("state"), ["ended without a word (killed?)"])

    def test_a_run_that_diverged(self):
        self.train("optimizer.lr=1e30", "optimizer.grad_clip=0", "optimizer.warmup_steps=0", code=4)
        page, summary = self.page(self.results), self.summary()
        self.assertEqual(page.row("state"), ["failed, exit code 4"])
        self.assertIn("a finite loss and gradient norm", summary["reason"])
        self.assertIn(summary["reason"], page.words)

    def test_a_summary_that_cannot_be_written(self):
        (self.results / "summary.json").mkdir(parents=True)
        self.assertIn("Finished 6 steps", self.train())
        page = self.page(self.results)
        self.assertEqual(page.row("steps"), ["6 of 6"])
        self.assertTrue(any(w.startswith("summary.json is not used: ") for w in page.words), page.words)

    def test_several_runs(self):
        names = {"first": "optimizer.lr=1e-3", "second": "optimizer.lr=2e-3"}
        for name, change in names.items():
            self.train(f"run.name={name}", f"run.output_dir={self.folder / name}", change)
        page = self.page(*(self.folder / name for name in names))
        losses = [program.started.rows(self.folder / name / "metrics.csv")[-1]["loss"] for name in names]
        self.assertNotEqual(*losses)
        self.assertEqual(page.row("training loss, last step"), [f"{float(v):.4f}" for v in losses])
        self.assertEqual(page.row("optimizer.lr"), ["0.001", "0.002"])
        self.assertEqual(page.row("run.name"), ['"first"', '"second"'])
        keys = {row[0] for row in page.rows if row and re.fullmatch(r"[a-z]+\.\w+", row[0])}
        self.assertEqual(keys, {"run.name", "run.output_dir", "optimizer.lr", "optimizer.min_lr", "checkpoint.dir"})


class MadeRuns(Report):
    def test_a_known_history(self):
        rows = [f"{i},{64 * i},{5 - 0.01 * i},{1 + i % 3},0.001,{10 + i % 2},6400,{4.5 if i == 50 else ''}\n"
                for i in range(1, 101)]
        page = self.page(self.write_run("known", rows + ["101,6464,3."]))
        self.assertEqual(page.row("training loss, last step"), ["4.0000"])
        self.assertEqual(page.row("validation loss, best"), ["4.5000 at step 50 (perplexity 90.02)"])
        self.assertEqual(page.row("tokens"), ["6.4K"])
        self.assertEqual(page.row("state"), ["not known"])
        self.assertIn("metrics.csv ends within a row, which is left out.", page.words)

    def test_the_loss_is_drawn_where_it_is(self):
        page = self.page(self.write_run("line", ["1,64,2,1,0.001,1,1,\n", "2,128,6,1,0.001,1,1,\n",
                                                 "3,192,4,1,0.001,1,1,\n"]))
        path = re.search(r'<path class="line" d="M(\S+) (\S+)L(\S+) (\S+)L(\S+) (\S+)"', page.text)
        x1, y1, x2, y2, x3, y3 = map(float, path.groups())
        self.assertAlmostEqual(x2 - x1, x3 - x2, delta=0.2)
        self.assertAlmostEqual(y1 - y2, 2 * (y3 - y2), delta=0.2)  # up is less
        self.assertGreater(y1, y3)

    def test_a_long_run_is_thinned_and_keeps_its_spike(self):
        rows = [f"{i},{64 * i},{500 if i == 33333 else 2},1,0.001,10,6400,\n" for i in range(1, 60001)]
        page = self.page(self.write_run("long", rows))
        self.assertLess(len(page.text), 400000)
        raw = re.search(r'<path class="raw" d="([^"]*)"', page.text)[1]
        heights = [float(point.split()[1]) for point in re.split("[ML]", raw)[1:]]
        self.assertEqual(sum(y == min(heights) for y in heights), 1)
        self.assertGreater(sorted(heights)[1] - min(heights), 300)

    def test_standard_output_has_the_page_alone(self):
        folder = self.write_run("good", ["1,64,2,1,0.001,1,1,\n"])
        whole = self.page(folder)
        run = program.Run(0, ["report", str(folder), "--out", "/dev/stdout"], self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual((run.code, run.err), (0, ""))
        without_time = lambda text: re.sub(r"\d{4}-\d\d-\d\d[^<]*", "", text)
        self.assertEqual(without_time(run.out), without_time(whole.text))

    def test_names_are_text(self):
        hostile = '<script>alert(1)</script>"&\''
        summary = {"p3d_run_summary": 1, "run": hostile, "reason": "</pre><script>x</script>", "program": "<b>",
                   "starts": [{"state": "failed"}], "phases": [{"phase": "</td><script>", "mean_s": 1}],
                   "memory_of_ranks_bytes": [{"parameters": 5}]}
        folder = self.write_run("<img src=x onerror=alert(1)>", ["1,64,2,1,0.001,1,1,\n"], {
            "summary.json": json.dumps(summary), "resolved.toml": "[run]\nname = \"</pre><script>\"\n",
            "trace.svg": "<svg><script>alert(1)</script></svg>"})
        other = self.write_run("other", ["1,64,2,1,0.001,1,1,\n"], {"resolved.toml": "[run]\n<script> = </code>\n"})
        for folders in ([folder], [folder, other]):  # self.page: no <script>, no handler
            page = self.page(*folders)
            self.assertTrue(any(hostile in word for word in page.words))
            self.assertEqual(page.tags.count("img"), 1)

    def test_values_that_are_not_finite(self):
        rows = ["1,64,nan,inf,0.001,1,1,\n", "2,128,inf,nan,0.001,1,1,nan\n", "3,192,2,1,0.001,1,1,\n"]
        page = self.page(self.write_run("holes", rows))
        self.assertEqual(page.row("steps with NaN or infinity"), ["2"])
        self.assertIn("NaN at step 1", page.words)
        page = self.page(self.write_run("only", ["1,64,nan,nan,nan,nan,nan,nan\n"]), self.write_run("empty", []))
        self.assertIn("No step is finished yet.", "".join(page.words))

    def test_more_runs_than_colours(self):
        row = "1,64,2,1,0.001,1,1,\n"
        page = self.page(*(self.write_run(f"r{i}", [row]) for i in range(16)))
        self.assertEqual(len(page.row("state")), 16)
        rules = dict(re.findall(r"\.(r\d+)\{(--run:[^}]*)\}", page.text))
        self.assertEqual(len(set(rules.values())), 16)


class Refusals(Report):
    def test_what_is_no_run(self):
        self.refused("none", )
        self.refused("no such folder", "nowhere")
        self.refused("a folder without metrics.csv", ".")
        self.refused("a file", "input.toml")
        folder = self.write_run("bad", ["1,64,2,1,0.001,1,1,\n", "2,x\n", "3,192,2,1,0.001,1,1,\n"])
        self.refused(r"bad/metrics.csv:3", folder.name)
        good = self.write_run("good", ["1,64,2,1,0.001,1,1,\n"])
        self.refused(r"nowhere/page.html: No such file or directory", good.name, "--out", "nowhere/page.html")
        self.refused(r".*: Is a directory", good.name, "--out", folder.name)
        self.refused("--out good/metrics.csv, which is read", good.name, "--out", "good/metrics.csv")
        self.refused(".*--nonsense", good.name, "--nonsense")
        self.assertFalse((self.folder / "report.html").exists())


if __name__ == "__main__":
    unittest.main()
