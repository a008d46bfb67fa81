// SPDX-License-Identifier: Apache-2.0
// The charts of the page: loss over steps or tokens, gradient norm, learning rate, the second half of the loss, speed,
// step time, and with experts their balance. Each chart has one curve for each run.

#include "chart.hpp"
#include "run_page_parts.hpp"

#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace p3d::page {

namespace {

constexpr ChartSize small{460, 290}, large{920, 600};

/// The quantity along a chart's x axis.
enum class Over { steps, tokens };

using Value = double (*)(base::MetricsRow const&);

/// One chart of a value for all runs. With `validation` it shows the validation losses as rings.
Chart chart(Runs const& runs, Over over, Value value, bool validation, bool smooth) {
  Chart c;
  c.x_title = over == Over::steps ? "step" : "tokens";
  c.x_scale = over == Over::steps ? Scale::linear : Scale::logarithmic;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& curve = c.curves.emplace_back();
    auto const& rows = runs[i].rows;
    auto const x = [&](base::MetricsRow const& r) {
      return static_cast<double>(over == Over::steps ? r.step : r.tokens);
    };
    curve.run = i;
    curve.smooth = smooth;
    curve.points.reserve(rows.size());
    curve.steps.reserve(rows.size());
    for (auto const& r : rows) {
      curve.points.push_back({x(r), value(r)});
      curve.steps.push_back(r.step);
      if (validation && r.eval_loss) curve.marks.push_back({x(r), *r.eval_loss});
    }
    // A run that was stopped and continued gets a mark at the step where it continued.
    if (!runs[i].summary) continue;
    for (auto const& start : runs[i].summary->starts) {
      for (auto const& r : rows) {
        if (start.first_step > 0 && r.step == start.first_step) curve.starts.push_back(x(r));
      }
    }
  }
  return c;
}

/// The second half of a chart over steps.
Chart second_half(Chart chart) {
  double last = 0.0;
  for (auto const& c : chart.curves) {
    if (!c.points.empty()) last = std::max(last, c.points.back().x);
  }
  for (auto& c : chart.curves) {
    auto const early = [&](Point const& p) { return p.x <= last / 2; };
    auto const from = std::find_if_not(c.points.begin(), c.points.end(), early);
    c.steps.erase(c.steps.begin(), c.steps.begin() + (from - c.points.begin()));
    c.points.erase(c.points.begin(), from);
    std::erase_if(c.marks, early);
    std::erase_if(c.starts, [&](double x) { return x <= last / 2; });
  }
  return chart;
}

/// The scale for learning rates: linear, unless the highest rate of one run is far above that of another.
Scale scale_of_rates(Runs const& runs) {
  double least = std::numeric_limits<double>::infinity(), most = 0.0;
  for (auto const& run : runs) {
    double highest = 0.0;
    for (auto const& r : run.rows) highest = std::max(highest, r.lr);
    if (!(highest > 0.0)) continue;
    least = std::min(least, highest);
    most = std::max(most, highest);
  }
  return most > 30.0 * least ? Scale::logarithmic : Scale::linear;
}

/// A panel with a title and the chart. A large panel also has a small form, for narrow screens.
std::string panel(Chart const& c, std::string const& classes = "") {
  bool const wide = classes.find("wide") != std::string::npos;
  auto out = fmt::format("<figure class=\"panel {}\"><figcaption><h3>{}</h3></figcaption>\n", classes,
                         base::markup_text(c.title));
  if (wide) out += "<div class=\"on-wide\">" + to_svg(c, large) + "</div><div class=\"on-narrow\">";
  return out + to_svg(c, small) + (wide ? "</div></figure>\n" : "</figure>\n");
}

/// Charts of the balance of experts; "" where no run has experts.
std::string expert_panels(Runs const& runs) {
  auto const has = [](RunRecord const& run) { return !run.experts.empty(); };
  if (std::none_of(runs.begin(), runs.end(), has)) return "";
  auto const make = [&](char const* title, char const* y_title, double ExpertRow::*value) {
    Chart c;
    c.title = title;
    c.x_title = "step";
    c.y_title = y_title;
    c.y_from_zero = true;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      auto& curve = c.curves.emplace_back();
      curve.run = i;
      for (auto const& row : runs[i].experts) {
        curve.points.push_back({static_cast<double>(row.step), row.*value});
        curve.steps.push_back(row.step);
      }
    }
    return c;
  };
  return panel(make("Busiest expert", "tokens over the mean, worst layer", &ExpertRow::busiest)) +
         panel(make("Entropy of experts", "over that of even ones, worst layer", &ExpertRow::entropy));
}

/// A line that explains the lines and marks of the charts.
std::string lines_note(Runs const& runs) {
  std::size_t window = 1;
  bool went_on = false;
  for (auto const& run : runs) {
    window = std::max(window, smoothing_window(run.rows.size()));
    for (auto const& start : run.summary.value_or(plan::RunSummary{}).starts) went_on = went_on || start.first_step > 0;
  }
  std::string out = "Lines: training. Rings: validation. ";
  if (window > 1)
    out += fmt::format("Thin lines: every step. Thick lines: the mean of {}. ",
                       runs.size() == 1 ? fmt::format("{} steps", window) : "about 2 % of the steps");
  if (went_on) out += "Dotted: the run went on after a stop. ";
  return out + "Crosses: values that are not finite.";
}

/// The chart of the losses of multi-token prediction; "" where no run has any.
std::string prediction_panel(Runs const& runs) {
  Chart c;
  c.title = "Multi-token prediction";
  c.x_title = "step";
  c.y_title = "mean loss of the blocks (nats per token)";
  c.y_from_zero = true;
  bool any = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& curve = c.curves.emplace_back();
    curve.run = i;
    curve.smooth = true;
    for (auto const& r : runs[i].rows) {
      if (!r.mtp_loss) continue;
      any = true;
      curve.points.push_back({static_cast<double>(r.step), *r.mtp_loss});
      curve.steps.push_back(r.step);
    }
  }
  return any ? panel(c) : "";
}

}  // namespace

std::string curves_html(Runs const& runs) {
  auto const make = [&](char const* title, char const* y_title, Value value, bool smooth = true) {
    auto c = chart(runs, Over::steps, value, false, smooth);
    c.title = title;
    c.y_title = y_title;
    c.y_from_zero = true;
    return c;
  };
  auto const loss = [](base::MetricsRow const& r) { return r.loss; };
  auto by_steps = chart(runs, Over::steps, loss, true, true), by_tokens = chart(runs, Over::tokens, loss, true, true);
  by_steps.title = by_tokens.title = "Loss";
  by_steps.y_title = by_tokens.y_title = "loss (nats per token)";
  by_tokens.y_scale = Scale::logarithmic;
  auto late = second_half(by_steps);
  late.title = "Loss, second half";
  auto norm = make("Gradient norm", "global norm before clipping", [](auto const& r) { return r.grad_norm; });
  norm.y_from_zero = false;
  auto rate = make(
      "Learning rate", "learning rate", [](auto const& r) { return r.lr; }, false);
  rate.y_scale = scale_of_rates(runs);
  auto const speed = make("Speed", "tokens/s, all ranks", [](auto const& r) { return r.tokens_per_s; });
  auto const time = make("Step time", "ms", [](auto const& r) { return r.step_ms; });
  return "<section id=\"curves\"><h2>Curves</h2>\n<p class=\"quiet\">" + lines_note(runs) +
         "</p>\n<p class=\"switch\">Loss over <label for=\"by-steps\">steps</label><label for=\"by-tokens\">tokens, "
         "log-log</label></p>\n<div class=\"panels\">\n" +
         panel(by_steps, "wide over-steps") + panel(by_tokens, "wide over-tokens") + panel(norm) + panel(rate) +
         panel(late) + prediction_panel(runs) + panel(speed) + panel(time) + expert_panels(runs) + "</div></section>\n";
}

}  // namespace p3d::page
