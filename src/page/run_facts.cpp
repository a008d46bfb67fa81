// SPDX-License-Identifier: Apache-2.0
// The numbers of the page: those of one run as a list, those of several in a table that compares them. Every run has
// the same list of names; a value that is not known is empty, and a row that is empty for all runs is left out.

#include "curve.hpp"
#include "run_page_parts.hpp"

#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace p3d::page {

namespace {

/// The median of one column of metrics.csv; 0 without a finite value.
double median_of(std::vector<base::MetricsRow> const& rows, double base::MetricsRow::*member) {
  std::vector<double> values;
  for (auto const& r : rows) {
    if (std::isfinite(r.*member)) values.push_back(r.*member);
  }
  if (values.empty()) return 0.0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A loss with four decimals, or in a short form where it is very large or not finite.
std::string loss_text(double loss) {
  return std::isfinite(loss) && std::fabs(loss) < 1e4 ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", loss);
}

/// The state of a run with its exit code.
std::string state_text(RunRecord const& run) {
  auto text = run.state();
  auto const& s = run.summary;
  if (text == "ended without a word") text += " (killed?)";
  if (s && s->state() != plan::RunState::running && s->exit_code) text += fmt::format(", exit code {}", *s->exit_code);
  return text;
}

/// The steps that are done, of those that the input asks for.
std::string steps_text(RunRecord const& run) {
  auto const done = run.rows.empty() ? 0 : run.rows.back().step;
  auto asked = run.summary ? fmt::format("{}", run.summary->steps) : std::string();
  for (auto const& [key, value] : run.input) {
    if (key == "run.steps" && asked.empty()) asked = value;
  }
  return asked.empty() ? fmt::format("{}", done) : fmt::format("{} of {}", done, asked);
}

/// Adds the training and validation losses, and the number of steps with NaN or infinity.
void add_losses(RunRecord const& run, Facts& facts) {
  auto const& rows = run.rows;
  std::string last, mean, best, last_validation;
  if (!rows.empty()) {
    last = loss_text(rows.back().loss);
    // One training loss depends on its batch; the mean of the last 1 % of the steps says more.
    auto const count = std::max<std::size_t>(1, rows.size() / 100);
    double sum = 0.0;
    for (std::size_t i = rows.size() - count; i < rows.size(); ++i) sum += rows[i].loss;
    mean = loss_text(sum / static_cast<double>(count));
  }
  base::MetricsRow const *least = nullptr, *newest = nullptr;
  for (auto const& r : rows) {
    if (!r.eval_loss) continue;
    newest = &r;
    if (std::isfinite(*r.eval_loss) && (least == nullptr || *r.eval_loss < *least->eval_loss)) least = &r;
  }
  auto const text = [](base::MetricsRow const* r) {
    return r == nullptr ? std::string()
                        : fmt::format("{} at step {} (perplexity {:.4g})", loss_text(*r->eval_loss), r->step,
                                      std::exp(*r->eval_loss));
  };
  facts.emplace_back("training loss, last step", last);
  facts.emplace_back("training loss, mean of the last 1 %", rows.size() >= 200 ? mean : "");
  bool const predicts = !rows.empty() && rows.back().mtp_loss;
  facts.emplace_back("multi-token prediction loss, last step", predicts ? loss_text(*rows.back().mtp_loss) : "");
  facts.emplace_back("validation loss, best", text(least));
  facts.emplace_back("validation loss, last", text(newest));
  auto const bad = std::count_if(rows.begin(), rows.end(),
                                 [](auto const& r) { return !std::isfinite(r.loss) || !std::isfinite(r.grad_norm); });
  facts.emplace_back("steps with NaN or infinity", bad > 0 ? fmt::format("{}", bad) : "");
}

/// The wall time of all starts.
std::string wall_text(plan::RunSummary const& s) {
  double wall = 0.0;
  for (auto const& start : s.starts) wall += start.wall_s;
  if (wall <= 0.0) return "";
  auto const starts = static_cast<std::int64_t>(s.starts.size());
  return base::human_seconds(wall) + (starts > 1 ? ", in " + base::counted(starts, "start") : "");
}

/// Adds speed, MFU, memory and wall time.
void add_speed(RunRecord const& run, Facts& facts) {
  auto const& s = run.summary;
  double const speed = median_of(run.rows, &base::MetricsRow::tokens_per_s),
               ms = median_of(run.rows, &base::MetricsRow::step_ms);
  facts.emplace_back("tokens/s, median", speed > 0 ? base::human_count(speed) : "");
  facts.emplace_back("step time, median", ms > 0 ? fmt::format("{:.4g} ms", ms) : "");
  std::string mfu, memory;
  if (s && s->mfu() > 0) {
    mfu = fmt::format("{:.2f}", s->mfu());
    if (s->recomputed_flops_per_step > 0) mfu += fmt::format(" (HFU {:.2f})", s->hfu());
    mfu += fmt::format(" of {:.4g} {}FLOP/s a rank", s->ceiling_flops / (s->ceiling_flops < 1e13 ? 1e9 : 1e12),
                       s->ceiling_flops < 1e13 ? "G" : "T");
  }
  if (s && s->memory_predicted > 0) {
    memory = base::human_bytes(s->memory_predicted) + " predicted";
    if (s->memory_found > 0) memory += ", " + base::human_bytes(s->memory_found) + " found";
  }
  facts.emplace_back("MFU, median step", mfu);
  facts.emplace_back("memory, all ranks", memory);
  facts.emplace_back("bottleneck", s ? s->bottleneck : "");
  facts.emplace_back("wall time", s ? wall_text(*s) : "");
}

/// The text of a table's cell, escaped.
std::string cell(std::string const& value) { return value.empty() ? "&ndash;" : base::markup_text(value); }

/// The beginning of a table with one column for each run.
std::string table_head(Runs const& runs) {
  std::string out = "<div class=\"scroll\"><table>\n<thead><tr><th></th>";
  auto const names = labels(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) out += fmt::format("<th>{}{}</th>", swatch(r), names[r]);
  return out + "</tr></thead>\n<tbody>\n";
}

}  // namespace

Facts results_of(RunRecord const& run) {
  Facts facts{{"state", state_text(run)},
              {"steps", steps_text(run)},
              {"tokens", run.rows.empty() ? "" : base::human_count(static_cast<double>(run.rows.back().tokens))}};
  add_losses(run, facts);
  add_speed(run, facts);
  return facts;
}

Facts setting_of(RunRecord const& run) {
  Facts facts;
  auto const s = run.summary.value_or(plan::RunSummary{});
  bool const known = run.summary.has_value();
  facts.emplace_back("ranks", known ? fmt::format("{}: {}", s.ranks(), s.layout) : "");
  facts.emplace_back("pipeline", known ? fmt::format("{}, {}, {}", s.schedule, base::counted(s.stages, "stage"),
                                                     base::counted(s.microbatches, "microbatch"))
                                       : "");
  facts.emplace_back("precision", s.precision);
  facts.emplace_back("parameters", known ? base::human_count(static_cast<double>(s.parameters)) : "");
  facts.emplace_back("tokens a step", known ? fmt::format("{}", s.tokens_per_step) : "");
  facts.emplace_back("data", known ? fmt::format("{}; windows: {} training, {} validation", s.data, s.training_windows,
                                                 s.validation_windows)
                                   : "");
  facts.emplace_back("skipped steps (loss scale)", s.skipped_steps > 0 ? fmt::format("{}", s.skipped_steps) : "");
  facts.emplace_back(
      "machine",
      known ? fmt::format("{}: {} and {} a node, {} a rank, {}", s.host, base::counted(s.ranks_on_node, "rank"),
                          base::counted(s.cores_on_node, "core"), base::counted(s.threads, "thread"), s.backend)
            : "");
  facts.emplace_back("program", s.program.substr(0, s.program.find('\n')));
  facts.emplace_back("started", s.starts.empty() ? "" : s.starts.front().started);
  facts.emplace_back("last row written", run.last_change);
  facts.emplace_back("folder", run.folder);
  return facts;
}

std::string list_html(Facts const& facts) {
  std::string out = "<dl class=\"facts\">\n";
  for (auto const& [name, value] : facts) {
    if (!value.empty())
      out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", base::markup_text(name), base::markup_text(value));
  }
  return out + "</dl>\n";
}

std::string comparison_html(Runs const& runs) {
  if (runs.size() < 2) return "";
  std::vector<Facts> all;
  for (auto const& run : runs) {
    auto& facts = all.emplace_back(results_of(run));
    auto const setting = setting_of(run);
    facts.insert(facts.end(), setting.begin(), setting.end());
  }
  auto out = "<section id=\"numbers\"><h2>Numbers</h2>" + table_head(runs);
  for (std::size_t i = 0; i < all.front().size(); ++i) {
    if (std::all_of(all.begin(), all.end(), [&](Facts const& f) { return f[i].second.empty(); })) continue;
    out += fmt::format("<tr><th>{}</th>", base::markup_text(all.front()[i].first));
    for (auto const& facts : all) out += fmt::format("<td>{}</td>", cell(facts[i].second));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div></section>\n";
}

std::string differences_html(Runs const& runs) {
  if (runs.size() < 2) return "";
  std::vector<std::string> keys;
  std::map<std::string, std::vector<std::string>> values;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (auto const& [key, value] : runs[r].input) {
      auto& row = values[key];
      if (row.empty()) keys.push_back(key), row.resize(runs.size());
      row[r] = value;
    }
  }
  std::string rows;
  std::size_t same = 0;
  // Keys with one value in all runs are only counted. A key that a run does not have counts as an empty value.
  for (auto const& key : keys) {
    auto const& row = values[key];
    if (std::all_of(row.begin(), row.end(), [&](auto const& v) { return v == row.front(); })) {
      ++same;
      continue;
    }
    rows += fmt::format("<tr><th><code>{}</code></th>", base::markup_text(key));
    for (auto const& value : row) rows += fmt::format("<td><code>{}</code></td>", cell(value));
    rows += "</tr>\n";
  }
  std::string out = "<section id=\"differences\"><h2>Keys of the input that differ</h2>\n";
  if (rows.empty()) return out + "<p>None.</p></section>\n";
  return out + table_head(runs) + rows +
         fmt::format("</tbody></table></div>\n<p class=\"quiet\">{} are equal.</p></section>\n",
                     base::counted(static_cast<std::int64_t>(same), "other key"));
}

}  // namespace p3d::page
