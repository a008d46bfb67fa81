// SPDX-License-Identifier: Apache-2.0
// Parts of a step that one reader takes together have one colour: all linears, all that waits for ranks of a layer's
// collectives, all of the pipeline. Lightness alternates, so that a black-and-white print shows the borders.
#include <p3d/page/plan_picture.hpp>

#include <p3d/base/enum_names.hpp>
#include <p3d/base/printable.hpp>

#include "axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace p3d::page {
namespace {

using plan::TimePart;

struct Group {
  char const* name;
  char const* fill;
  std::vector<TimePart> parts;
};

std::array<Group, 7> const& groups() {
  using enum TimePart;
  static std::array<Group, 7> const all{
      Group{"linears", "#cbe4f9", {gemm_forward, gemm_input, gemm_weight}},
      Group{"attention", "#1d6b57", {attention}},
      Group{"memory-bound kernels and launches", "#f2dfa8", {memory, launches, optimizer}},
      Group{"embedding and head", "#6b3fa0", {head}},
      Group{"collectives inside a layer", "#eaa144", {tensor, context, experts}},
      Group{"waits of the pipeline", "#b01030", {bubble, messages}},
      Group{"waits for replicas and slow ranks", "#bdbdc6", {weights, data, embeddings, jitter}}};
  return all;
}

constexpr double label_width = 420, plot_width = 640, margin = 14, bar = 18, gap = 8, line = 16;

}  // namespace

std::string to_svg(std::vector<plan::PlannedLayout> const& layouts, std::string const& cluster) {
  // Steps of different numbers of ranks are compared by the time of all ranks together.
  bool const several = std::any_of(layouts.begin(), layouts.end(), [&](auto const& l) {
    return l.config.num_ranks() != layouts.front().config.num_ranks();
  });
  double longest = 0;
  for (auto const& l : layouts)
    longest = std::max(longest, std::max(l.time.seconds(), l.time.high) * (several ? l.config.num_ranks() : 1));
  double const left = margin + label_width, top = margin + 2 * line;
  double const bottom = top + static_cast<double>(layouts.size()) * (bar + gap);
  auto const& all = groups();
  double const height = bottom + 2 * line + static_cast<double>((all.size() + 1) / 2) * line + margin;
  double const width = left + plot_width + margin + 60;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"{2:.0f}\" y=\"{3:.0f}\" font-size=\"14\">Predicted step by layout, {4}{5}</text>\n",
      width, height, margin, margin + line - 4, base::markup_text(cluster), several ? ": seconds of all ranks" : "");
  Axis const axis(0, longest, Scale::linear, left, left + plot_width, true);
  for (auto const& tick : axis.ticks(6))
    if (double const x = axis.at(tick.value); x <= left + plot_width + 1)
      out += fmt::format(
          "<path d=\"M{0:.1f},{1:.1f} V{2:.1f}\" stroke=\"#d8d8de\"/>\n<text x=\"{0:.1f}\" "
          "y=\"{3:.1f}\" text-anchor=\"middle\">{4} s</text>\n",
          x, top, bottom, bottom + line, tick.label);
  double y = top;
  for (auto const& l : layouts) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{} ranks: {}</text>\n", left - 6,
                       y + bar - 5, l.config.num_ranks(), base::markup_text(plan::layout_of(l.config)));
    double const times = several ? l.config.num_ranks() : 1;
    double begin = 0;
    for (auto const& g : all) {
      double seconds = 0;
      for (auto part : g.parts) seconds += times * l.time[part];
      if (seconds <= 0) continue;
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}: {:.4g} s, {:.1f} "
          "%</title></rect>\n",
          axis.at(begin), y, axis.at(begin + seconds) - axis.at(begin), bar, g.fill, g.name, seconds / times,
          100 * seconds / times / l.time.seconds());
      begin += seconds;
    }
    out += fmt::format("<path d=\"M{:.1f},{:.1f} H{:.1f}\" stroke=\"#000000\"/>\n", axis.at(times * l.time.low),
                       y + bar / 2, axis.at(times * l.time.high));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{:.4g} s</text>\n",
                       std::max(axis.at(times * l.time.high), axis.at(begin)) + 5, y + bar - 5, l.time.seconds());
    y += bar + gap;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    double const x = margin + (i % 2 == 0 ? 0 : 330), at = bottom + (2.5 + static_cast<double>(i / 2)) * line;
    out += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.0f}\" "
        "y=\"{:.1f}\">{}</text>\n",
        x, at, all[i].fill, x + 18, at + 10, all[i].name);
  }
  out += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\">black line: the interval of nine of ten runs</text>\n</svg>\n",
                     margin + 330, bottom + 2.5 * line + 3 * line + 10);
  return out;
}

}  // namespace p3d::page
