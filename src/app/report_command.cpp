// SPDX-License-Identifier: Apache-2.0
// Makes a page of the files of runs. Nothing of a run is started or changed, so it may be going on.
#include "report_command.hpp"

#include "command_line.hpp"
#include "words.hpp"

#include <p3d/base/text.hpp>
#include <p3d/page/run_page.hpp>

#include <fmt/format.h>

#include <ctime>
#include <iostream>

namespace p3d::app {

namespace {

constexpr char const* report_footer =
    "Examples:\n"
    "  p3d report runs/quickstart\n"
    "  p3d report runs/lr-1e-3 runs/lr-3e-3 --out compare.html\n"
    "\n"
    "RUN is the output folder of a run: metrics.csv, and beside it summary.json, resolved.toml and trace.svg.\n"
    "The page has no scripts and needs no network. A run that is going on is shown as far as it is.";

}  // namespace

int report_command(int argc, char** argv) {
  CLI::App app{"A page (HTML) of one run, or of several in the same charts."};
  app.name("p3d report");
  app.footer(report_footer);
  std::vector<std::string> folders;
  std::string out = "report.html";
  app.add_option("runs", folders, "output folders of runs")->type_name("RUN ...");
  app.add_option("--out", out, "the file to write")->capture_default_str()->type_name("FILE");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;
  if (folders.empty())
    throw wrong_words("the output folder of a run", "none", "p3d report runs/quickstart; p3d report --help says more");

  for (auto const& folder : folders)
    for (char const* name : {"metrics.csv", "summary.json", "resolved.toml", "trace.svg"})
      require_no_input(out, "--out", {folder + "/" + name});
  std::vector<page::RunRecord> runs;
  for (auto const& folder : folders) runs.push_back(page::read_run(folder));
  auto const page = page::to_html(runs, plan::utc(std::time(nullptr)));
  write_file(out, page, "--out");
  if (out == "/dev/stdout") return 0;
  std::cout << fmt::format("written: {} ({}, {})\n", out, base::counted(static_cast<std::int64_t>(runs.size()), "run"),
                           base::human_bytes(static_cast<double>(page.size())));
  return 0;
}

}  // namespace p3d::app
