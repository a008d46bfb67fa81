// SPDX-License-Identifier: Apache-2.0
// Timelines as pictures. Lightness falls in the order wait, forward, input part, backward, weight part, other, and each
// has a pattern or a letter of its own, so that a black-and-white print says the same as the colours.

#include <p3d/page/schedule_picture.hpp>

#include <p3d/base/printable.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/timeline_rows.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

namespace p3d::page {

namespace {

using namespace schedule;

constexpr double plot_left = 66, plot_width = 1120, notes_width = 170, margin = 14;
constexpr double row_height = 26, row_gap = 5;
constexpr double longest_drawn = 1.6;  ///< times the median of several timelines
constexpr int most_rows = 64;          ///< rows of a panel; of more ranks the first and the last ones are drawn

struct Look {
  Category category;
  char const* fill;
  char const* text;
  char const* stroke;  ///< colour of the pattern; "" for none
  char const* path;    ///< lines of the pattern, in a tile of 6 x 6
};
constexpr Look looks[]{
    {Category::forward, "#cbe4f9", "#000000", "", ""},
    {Category::backward, "#c8682c", "#ffffff", "#a04a14", "M0,0 L6,6 M-1,5 L1,7 M5,-1 L7,1"},
    {Category::input, "#eaa144", "#000000", "#a9670f", "M0,6 L6,0 M-1,1 L1,-1 M5,7 L7,5"},
    {Category::weight, "#1d6b57", "#ffffff", "", ""},
    {Category::head, "#e3d7f2", "#000000", "#8f6cc0", "M3,3 L3.9,3"},
    {Category::head_backward, "#6b3fa0", "#ffffff", "#8f6cc0", "M3,3 L4.2,3"},
    {Category::other, "#3d3d46", "#ffffff", "#8a8a96", "M3,0 L3,6"},
    {Category::wait, "#ffffff", "#b01030", "#e0405a", "M0,3 L1.6,3 M3,0 L4.6,0 M3,6 L4.6,6"},
};
constexpr Look const& look_of(Category c) {
  for (Look const& look : looks)
    if (look.category == c) return look;
  return looks[0];
}

/// The largest of 1, 2, 5 x 10^k that gives at least `count` steps.
double nice_step(double span, int count) {
  double const rough = span / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {5.0, 2.0, 1.0})
    if (factor * power <= rough) return factor * power;
  return power;
}

/// "s", and what to multiply seconds with.
std::pair<std::string, double> unit_of(std::string const& wanted, double span) {
  if (wanted != "s") return {wanted, 1};
  if (span >= 1) return {"s", 1};
  return span >= 1e-3 ? std::pair<std::string, double>{"ms", 1e3} : std::pair<std::string, double>{"us", 1e6};
}

class Picture {
public:
  Picture(std::vector<Timeline> const& timelines, std::string const& title, std::string const& time_unit)
      : title_(title) {
    std::vector<double> spans;
    for (Timeline const& t : timelines) {
      sorted_.emplace_back(t);
      spans.push_back(sorted_.back().end - sorted_.back().begin);
    }
    std::sort(spans.begin(), spans.end());
    // One that takes far longer than the others would press them together: it is cut.
    for (double span : spans)
      if (span <= longest_drawn * spans[spans.size() / 2]) span_ = span;
    if (!spans.empty() && spans.back() > span_) span_ *= 1.05;
    if (!(span_ > 0)) span_ = 1;
    std::tie(unit_, factor_) = unit_of(time_unit, span_);
    y_ = margin;
    if (!title_.empty()) text(plot_left, y_ += 16, title_, "font-size=\"16\" font-weight=\"bold\"");
    legend(timelines);
    for (std::size_t i = 0; i < timelines.size(); ++i) panel(timelines[i], sorted_[i]);
    axis(unit_, factor_);
    y_ += margin;
  }

  std::string svg() const {
    double const width = plot_left + plot_width + notes_width;
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n<defs>\n",
        width, y_);
    for (Look const& look : looks) {
      if (!*look.path) continue;
      fmt::format_to(
          std::back_inserter(out),
          "<pattern id=\"c{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" "
          "fill=\"{}\"/><path d=\"{}\" stroke=\"{}\" stroke-width=\"1.1\"/></pattern>\n",
          static_cast<int>(look.category), look.fill, look.path, look.stroke);
    }
    out += "</defs>\n";
    fmt::format_to(std::back_inserter(out), "<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n", width, y_);
    return out + body_ + "</svg>\n";
  }

private:
  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), form, std::forward<Args>(args)...);
  }
  void text(double x, double y, std::string const& words, std::string const& style = "") {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, base::markup_text(words));
  }
  void box(double x, double y, double width, double height, Category c, bool framed) {
    Look const& look = look_of(c);
    std::string const fill = *look.path ? fmt::format("url(#c{})", static_cast<int>(c)) : look.fill;
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{}/>\n", x, y, width, height,
        fill, framed ? " stroke=\"#333333\" stroke-width=\"0.5\"" : "");
  }

  /// Draws the categories and the chunks that there are.
  void legend(std::vector<Timeline> const& timelines) {
    bool seen[std::size(looks)]{}, messages = false;
    for (TimelineRows const& t : sorted_)
      for (auto const& row : t.rows)
        for (TimelineEvent const& e : row) {
          seen[static_cast<int>(category_of(e))] = true;
          messages = messages || (is_message(e.action.op) && !e.waits);
        }
    seen[static_cast<int>(Category::wait)] = true;
    double x = plot_left;
    y_ += 12;
    for (Look const& look : looks) {
      if (!seen[static_cast<int>(look.category)]) continue;
      box(x, y_, 26, 16, look.category, true);
      std::string name = category_name(look.category);
      if (look.category == Category::other) name = messages ? "message, reduction, update" : "reduction, update";
      if (look.category == Category::wait) name = "wait (lost time)";
      text(x + 31, y_ + 12.5, name);
      x += 50 + 6.4 * static_cast<double>(name.size());
    }
    add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#000000\" stroke-width=\"1.6\" "
        "stroke-dasharray=\"5,3\"/>\n",
        x + 4, y_ - 1, y_ + 17);
    text(x + 10, y_ + 12.5, "end if nobody waited");
    x += 168;
    text(x, y_ + 12.5, "number: microbatch", "fill=\"#444444\"");
    x += 150;
    int chunks = 1;
    for (std::size_t i = 0; i < timelines.size(); ++i) chunks = std::max(chunks, chunks_of(timelines[i], sorted_[i]));
    if (chunks > 1) text(x, y_ + 12.5, "bars below: later stages of the rank", "fill=\"#444444\"");
    y_ += 24;
  }

  static int chunks_of(Timeline const& timeline, TimelineRows const& sorted) {
    if (timeline.stages_per_rank > 0) return timeline.stages_per_rank;
    int stages = 1;
    for (auto const& row : sorted.rows)
      for (TimelineEvent const& e : row) stages = std::max(stages, e.action.stage + 1);
    return (stages + timeline.num_ranks - 1) / std::max(1, timeline.num_ranks);
  }

  double x_of(double time, TimelineRows const& t) const {
    return plot_left + plot_width * std::min(1.0, (time - t.begin) / span_);
  }

  void panel(Timeline const& timeline, TimelineRows const& sorted) {
    bool const cut = sorted.end - sorted.begin > span_ * 1.0001;
    if (cut || !timeline.title.empty()) y_ += 16;
    if (!timeline.title.empty()) text(plot_left, y_, timeline.title, "font-weight=\"bold\" font-size=\"13\"");
    if (cut)  // above the rows, which go on to the right into the ranks' notes
      text(plot_left + plot_width, y_ - 3,
           fmt::format("cut: goes on to {:.4g} {}", (sorted.end - sorted.begin) * factor_, unit_),
           "text-anchor=\"end\" font-size=\"11\" font-weight=\"bold\"");
    y_ += 6;
    double const top = y_;
    int const count = static_cast<int>(sorted.rows.size()), half = most_rows / 2;
    for (int rank = 0; rank < count; ++rank) {
      if (count > most_rows && rank == half) {
        text(plot_left, y_ + 12, fmt::format("... ranks {} to {} left out ...", half, count - half - 1),
             "fill=\"#444444\"");
        y_ += 18;
        rank = count - half;
      }
      std::string const note = static_cast<std::size_t>(rank) < timeline.rank_notes.size()
                                   ? timeline.rank_notes[static_cast<std::size_t>(rank)]
                                   : "";
      row(timeline.num_ranks, rank, sorted, note);
    }
    foot(timeline, sorted, top);
    for (std::string const& line : timeline.caption) text(plot_left, y_ += 15, line, "fill=\"#222222\"");
    y_ += 12;
  }

  /// Marks the time at which the ranks would end if none of them waited.
  void foot(Timeline const& timeline, TimelineRows const& sorted, double top) {
    double busy = 0;
    for (RankTimes const& t : rank_times(timeline))
      busy += (t.compute + t.other) / static_cast<double>(std::max<std::size_t>(1, sorted.rows.size()));
    double const x = x_of(sorted.begin + busy, sorted), bottom = y_ - row_gap + 4;
    if (busy > 0 && busy <= span_)
      add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#000000\" stroke-width=\"1.6\" "
          "stroke-dasharray=\"5,3\"/>\n",
          x, top - 4, bottom);
  }

  void row(int num_ranks, int rank, TimelineRows const& sorted, std::string const& note) {
    text(plot_left - 8, y_ + row_height / 2 + 4, fmt::format("rank {}", rank), "text-anchor=\"end\"");
    box(x_of(sorted.begin, sorted), y_, x_of(sorted.end, sorted) - plot_left, row_height, Category::wait, false);
    auto const& events = sorted.rows[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < events.size();) {
      // Neighbours of one kind too narrow to be seen apart are drawn as one.
      Category const category = category_of(events[i]);
      if (category == Category::wait) {  // the ground that all is drawn on
        ++i;
        continue;
      }
      double const x = x_of(events[i].start, sorted);
      double end = x_of(events[i].end, sorted);
      std::size_t next = i + 1;
      while (end - x < 2 && next < events.size() && category_of(events[next]) == category &&
             x_of(events[next].start, sorted) - end < 0.5)
        end = x_of(events[next++].end, sorted);
      double const width = end - x;
      if (width > 0) box(x, y_, width, row_height, category, width >= 3);
      Action const& a = events[i].action;
      if (next == i + 1 && a.microbatch >= 0) {
        bar(x, width, a.stage / std::max(1, num_ranks), category);
        std::string const label = fmt::format("{}", a.microbatch);
        if (width >= 7.0 * static_cast<double>(label.size()) + 2)
          text(x + width / 2, y_ + row_height / 2 + 3.5, label,
               fmt::format("text-anchor=\"middle\" font-size=\"11\" fill=\"{}\"", look_of(category).text));
      }
      i = next;
    }
    if (!note.empty())
      text(plot_left + plot_width + 8, y_ + row_height / 2 + 4, note, "font-size=\"11\" fill=\"#222222\"");
    y_ += row_height + row_gap;
  }

  /// Marks the later stages of a rank: one bar at the foot of the box for the second, two for the third, ...
  void bar(double x, double width, int chunk, Category category) {
    if (chunk == 0 || width < 2) return;
    double const foot = y_ + row_height - 3, each = (width - 2) / chunk;
    for (int i = 0; i < std::min(chunk, 8); ++i)
      add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"3\" fill=\"{}\"/>\n", x + 1 + i * each, foot,
          std::max(0.6, each - (chunk > 1 ? 1.5 : 0)), category == Category::weight ? "#ffffff" : "#111111");
  }

  void axis(std::string const& unit, double factor) {
    double const step = nice_step(span_ * factor, 8);
    add("<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#333333\"/>\n", plot_left, y_,
        plot_left + plot_width);
    for (int i = 0; i * step <= span_ * factor * 1.0001; ++i) {
      double const x = plot_left + plot_width * i * step / (span_ * factor);
      add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#333333\"/>\n", x, y_, y_ + 5);
      text(x, y_ + 18, fmt::format("{:.6g}", i * step), "text-anchor=\"middle\" font-size=\"11\"");
    }
    text(plot_left + plot_width + 20, y_ + 18, "in " + unit, "font-size=\"11\"");
    y_ += 22;
  }

  std::string title_;
  std::vector<TimelineRows> sorted_;
  double span_ = 0;
  std::string unit_;
  double factor_ = 1;
  double y_ = 0;  ///< height at which the next thing begins
  std::string body_;
};

}  // namespace

std::string to_svg(std::vector<schedule::Timeline> const& timelines, std::string const& title,
                   std::string const& time_unit) {
  return Picture(timelines, title, time_unit).svg();
}

}  // namespace p3d::page
