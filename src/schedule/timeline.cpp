// SPDX-License-Identifier: Apache-2.0
// The numbers of a timeline, and its Chrome trace form.

#include <p3d/schedule/timeline_rows.hpp>

#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace p3d::schedule {

TimelineRows::TimelineRows(Timeline const& timeline) : rows(static_cast<std::size_t>(std::max(0, timeline.num_ranks))) {
  bool first = true;
  for (TimelineEvent const& e : timeline.events) {
    if (e.rank < 0 || e.rank >= timeline.num_ranks) continue;
    begin = first ? e.start : std::min(begin, e.start);
    end = first ? e.end : std::max(end, e.end);
    if (computes(e.action.op) && !e.waits) {
      compute_begin = std::min(compute_begin, e.start);
      compute_end = std::max(compute_end, e.end);
    }
    first = false;
    rows[static_cast<std::size_t>(e.rank)].push_back(e);
  }
  for (auto& row : rows)
    std::stable_sort(row.begin(), row.end(),
                     [](TimelineEvent const& a, TimelineEvent const& b) { return a.start < b.start; });
}

std::vector<RankTimes> rank_times(Timeline const& timeline) {
  TimelineRows const sorted(timeline);
  std::vector<RankTimes> times(sorted.rows.size());
  for (std::size_t r = 0; r < times.size(); ++r) {
    for (TimelineEvent const& e : sorted.rows[r])
      if (!e.waits) (computes(e.action.op) ? times[r].compute : times[r].other) += e.end - e.start;
    times[r].wait = std::max(0.0, sorted.end - sorted.begin - times[r].compute - times[r].other);
  }
  return times;
}

double bubble_share(Timeline const& timeline) {
  TimelineRows const sorted(timeline);
  double const span = sorted.compute_end - sorted.compute_begin;
  if (!(span > 0)) return 0;
  double busy = 0;
  for (RankTimes const& t : rank_times(timeline)) busy += t.compute;
  return 1 - busy / (span * timeline.num_ranks);
}

namespace {

/// A shorter time between two actions is what the rank needs to go on, and no wait.
constexpr double shortest_gap = 5e-6;

/// Writes the events of one pipeline as those of process `pid`, times from `origin` on.
class ChromeProcess {
public:
  ChromeProcess(std::string& json, std::size_t pid, double origin)
      : out_(std::back_inserter(json)), pid_(pid), origin_(origin) {}

  void write(Timeline const& timeline, TimelineRows const& sorted) {
    name("process_name", 0, timeline.title.empty() ? "p3d pipeline" : timeline.title);
    for (std::size_t rank = 0; rank < sorted.rows.size(); ++rank) {
      name("thread_name", rank,
           rank < timeline.rank_names.size() ? timeline.rank_names[rank] : fmt::format("rank {}", rank));
      double clock = sorted.begin;
      for (TimelineEvent const& e : sorted.rows[rank]) {
        if (e.start > clock + shortest_gap) block(rank, "wait", "wait", clock, e.start, "");
        block(rank, label(e), category_name(category_of(e)), e.start, e.end, arguments(e));
        clock = std::max(clock, e.end);
      }
      if (clock + shortest_gap < sorted.end) block(rank, "wait", "wait", clock, sorted.end, "");
    }
  }

private:
  static std::string label(TimelineEvent const& e) {
    Action shown = e.action;
    shown.slot = -1;
    return (e.waits ? "wait " : "") + to_string(shown);
  }
  static std::string arguments(TimelineEvent const& e) {
    std::string text;
    if (e.step >= 0) text += fmt::format(", \"step\": {}", e.step);
    if (e.action.microbatch >= 0)
      text += fmt::format(", \"stage\": {}, \"microbatch\": {}, \"slot\": {}", e.action.stage, e.action.microbatch,
                          e.action.slot);
    return text.empty() ? text : fmt::format(", \"args\": {{{}}}", text.substr(2));
  }
  void begin() {
    if (!first_ || pid_ > 0) fmt::format_to(out_, ",\n");
    first_ = false;
  }
  void name(char const* kind, std::size_t thread, std::string const& text) {
    begin();
    std::string quoted;
    for (char c : text) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    fmt::format_to(out_,
                   "{{\"name\": \"{}\", \"ph\": \"M\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": \"{}\"}}}}",
                   kind, pid_, thread, quoted);
  }
  void block(std::size_t rank, std::string const& what, char const* category, double start, double end,
             std::string const& args) {
    begin();
    fmt::format_to(out_,
                   "{{\"name\": \"{}\", \"cat\": \"{}\", \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, "
                   "\"dur\": {:.3f}{}}}",
                   what, category, pid_, rank, 1e6 * (start - origin_), 1e6 * (end - start), args);
  }

  std::back_insert_iterator<std::string> out_;
  std::size_t pid_;
  double origin_;
  bool first_ = true;
};

}  // namespace

std::string to_chrome_trace(std::vector<Timeline> const& timelines) {
  std::vector<TimelineRows> sorted(timelines.begin(), timelines.end());
  double origin = sorted.empty() ? 0.0 : sorted.front().begin;
  for (TimelineRows const& t : sorted) origin = std::min(origin, t.begin);
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (std::size_t i = 0; i < timelines.size(); ++i) ChromeProcess(json, i, origin).write(timelines[i], sorted[i]);
  return json + "\n]}\n";
}

std::string to_chrome_trace(Timeline const& timeline) { return to_chrome_trace(std::vector<Timeline>{timeline}); }

}  // namespace p3d::schedule
