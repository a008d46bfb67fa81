// SPDX-License-Identifier: Apache-2.0
// The page of `p3d report`. It has no scripts, and takes nothing from elsewhere. Style rules alone show and hide parts
// of it: they ask for the state of hidden inputs, which labels on the page switch.

#include <p3d/page/run_page.hpp>

#include "base64.hpp"
#include "run_page_parts.hpp"

#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/version.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::page {

namespace {

/// The head of the page, with its style.
std::string head(Runs const& runs, std::string const& title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{}</style></head>\n<body>\n",
      title, style(runs.size()));
}

/// The hidden inputs that labels of the page switch. They stand before everything whose style depends on them.
std::string switches(Runs const& runs) {
  std::string out =
      "<input type=\"radio\" name=\"over\" id=\"by-steps\" checked><input type=\"radio\" name=\"over\" "
      "id=\"by-tokens\">\n";
  if (runs.size() < 2) return out;
  for (std::size_t r = 0; r < runs.size(); ++r)
    out += fmt::format("<input type=\"checkbox\" id=\"show{}\" checked aria-label=\"show run {}\">", r, r + 1);
  return out + "\n";
}

/// The names and colours of several runs; a click on one shows or hides it.
std::string legend(Runs const& runs) {
  if (runs.size() < 2) return "";
  std::string out = "<p class=\"legend\">";
  auto const names = labels(runs);
  for (std::size_t r = 0; r < runs.size(); ++r)
    out += fmt::format("<label for=\"show{}\">{}{} <small>{}</small></label>\n", r, swatch(r), names[r],
                       base::markup_text(runs[r].state()));
  return out + "</p>\n";
}

/// Notes about the runs: why one ended early, that one goes on, what its folder lacks.
std::string notes(Runs const& runs) {
  std::string out;
  auto const names = labels(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    auto const& run = runs[r];
    auto const prefix = runs.size() > 1 ? fmt::format("{}<b>{}</b>: ", swatch(r), names[r]) : std::string();
    auto const add = [&](std::string const& text) { out += fmt::format("<li>{}{}</li>\n", prefix, text); };
    if (run.state() == "running") add("This run is going on; the page shows it as far as metrics.csv reaches.");
    if (run.state() == "ended without a word")
      add("This run ended without a word: summary.json says that it is running, but nothing holds its folder.");
    if (run.rows.empty()) add("No step is finished yet.");
    if (run.summary && !run.summary->reason.empty()) add("<pre>" + base::markup_text(run.summary->reason) + "</pre>");
    for (auto const& note : run.notes) add(base::markup_text(note));
  }
  return out.empty() ? "" : "<ul class=\"notes\">\n" + out + "</ul>\n";
}

/// The title of the page, from the names of the runs.
std::string title_of(Runs const& runs) {
  std::vector<std::string> names;
  for (auto const& run : runs) names.push_back(base::markup_text(run.name));
  if (names.size() > 3) return base::counted(static_cast<std::int64_t>(names.size()), "run");
  return base::join(names, " &middot; ");
}

}  // namespace

std::vector<std::string> labels(Runs const& runs) {
  std::vector<std::string> out;
  for (auto const& run : runs) {
    // Runs of the same name are told apart by their folders.
    auto const same =
        std::count_if(runs.begin(), runs.end(), [&](auto const& other) { return other.name == run.name; });
    out.push_back(base::markup_text(same > 1 ? fmt::format("{} ({})", run.name, run.folder) : run.name));
  }
  return out;
}

std::string swatch(std::size_t run) {
  return fmt::format(
      "<svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><g class=\"r{}\"><path class=\"line\" "
      "d=\"M1 5H25\"/><circle cx=\"13\" cy=\"5\" r=\"3\"/></g></svg>",
      run);
}

std::string traces_html(Runs const& runs) {
  std::string out;
  auto const names = labels(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].trace_svg.empty()) continue;
    // The trace is embedded as a picture: whatever the file contains, nothing in it runs or meets the page's own names.
    out += fmt::format(
        "<figure class=\"trace\"><figcaption>{}{}</figcaption><div class=\"scroll\"><img alt=\"timeline of the "
        "schedule\" src=\"data:image/svg+xml;base64,{}\"></div></figure>\n",
        runs.size() > 1 ? swatch(r) : "", names[r], base64(runs[r].trace_svg));
  }
  return out.empty() ? "" : "<section id=\"schedule\"><h2>Schedule, as measured</h2>\n" + out + "</section>\n";
}

std::string inputs_html(Runs const& runs) {
  std::string out = "<section id=\"input\"><h2>Input and versions</h2>\n";
  auto const names = labels(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    auto const mark = runs.size() > 1 ? swatch(r) : std::string();
    if (!runs[r].input_text.empty())
      out += fmt::format("<details><summary>{}{}: resolved.toml, the complete input</summary><pre>{}</pre></details>\n",
                         mark, names[r], base::markup_text(runs[r].input_text));
    if (runs[r].summary && !runs[r].summary->program.empty())
      out += fmt::format("<details><summary>{}{}: program and libraries</summary><pre>{}</pre></details>\n", mark,
                         names[r], base::markup_text(runs[r].summary->program));
  }
  return out + "</section>\n";
}

std::string to_html(Runs const& runs, std::string const& now) {
  auto const title = title_of(runs);
  bool const single = runs.size() == 1;
  return head(runs, title + " - p3d report") + switches(runs) + "<main>\n<header><h1>" + title + "</h1>\n" +
         notes(runs) + legend(runs) + (single ? list_html(results_of(runs.front())) : "") + "</header>\n" +
         curves_html(runs) + comparison_html(runs) + differences_html(runs) + tables_html(runs) + traces_html(runs) +
         (single ? "<section id=\"setting\"><h2>Setting</h2>" + list_html(setting_of(runs.front())) + "</section>\n"
                 : "") +
         inputs_html(runs) +
         fmt::format("<footer>Made by p3d {} on {}. Times are UTC.</footer>\n</main></body></html>\n",
                     base::markup_text(base::version_with_hash()), base::markup_text(now));
}

}  // namespace p3d::page
