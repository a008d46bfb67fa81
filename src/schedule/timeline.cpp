// What a timeline says in numbers, and its Chrome trace form.

#include "timeline_rows.hpp"

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
    if (is_compute(e.action.op)) {
      compute_begin = std::min(compute_begin, e.start);
      compute_end = std::max(compute_end, e.end);
    }
    first = false;
    rows[static_cast<std::size_t>(e.rank)].push_back(e);
  }
  for (auto& row : rows)
    std::stable_sort(row.begin(), row.end(), [](TimelineEvent const& a, TimelineEvent const& b) { return a.start < b.start; });
}

std::vector<RankTimes> rank_times(Timeline const& timeline) {
  TimelineRows const sorted(timeline);
  std::vector<RankTimes> times(sorted.rows.size());
  for (std::size_t r = 0; r < times.size(); ++r) {
    for (TimelineEvent const& e : sorted.rows[r]) (is_compute(e.action.op) ? times[r].compute : times[r].other) += e.end - e.start;
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

std::string to_chrome_trace(Timeline const& timeline) {
  TimelineRows const sorted(timeline);
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  auto const out = std::back_inserter(json);
  fmt::format_to(out, "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": {{\"name\": \"p3d pipeline\"}}}}");
  auto const event = [&](std::size_t rank, std::string const& name, char const* category, double start, double end,
                         std::string const& args) {
    fmt::format_to(out, ",\n{{\"name\": \"{}\", \"cat\": \"{}\", \"ph\": \"X\", \"pid\": 0, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}{}}}",
                   name, category, rank, 1e6 * (start - sorted.begin), 1e6 * (end - start), args);
  };
  for (std::size_t rank = 0; rank < sorted.rows.size(); ++rank) {
    fmt::format_to(out, ",\n{{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": {0}, \"args\": {{\"name\": \"rank {0}\"}}}}",
                   rank);
    double clock = sorted.begin;
    for (TimelineEvent const& e : sorted.rows[rank]) {
      if (e.start > clock) event(rank, "wait", "wait", clock, e.start, "");
      Action shown = e.action;
      shown.slot = -1;
      std::string args;
      if (e.action.microbatch >= 0)
        args = fmt::format(", \"args\": {{\"stage\": {}, \"microbatch\": {}, \"slot\": {}}}", e.action.stage, e.action.microbatch,
                           e.action.slot);
      event(rank, to_string(shown), category_name(category_of(e.action.op)), e.start, e.end, args);
      clock = std::max(clock, e.end);
    }
    if (clock < sorted.end) event(rank, "wait", "wait", clock, sorted.end, "");
  }
  return json + "\n]}\n";
}

}  // namespace p3d::schedule
