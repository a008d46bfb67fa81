// SPDX-License-Identifier: Apache-2.0
#include "timer_file.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace p3d::run {

namespace {
constexpr char const* timer_columns = "step,timer,calls,min_ms,mean_ms,max_ms\n";

/// The header and the rows of a file up to step `last`. A last line that was cut off is dropped.
std::string timer_rows_until(std::string const& path, std::int64_t last) {
  std::string out = timer_columns;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    std::int64_t step = 0;
    auto const [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
    bool const row = error == std::errc{} && end != line.data() + line.size() && *end == ',' &&
                     std::count(line.begin(), line.end(), ',') == 5;
    if (row && step <= last) out += line + '\n';
  }
  return out;
}
}  // namespace

TimerFile::TimerFile(std::string const& output_dir, std::int64_t start, bool root)
    : path_(output_dir + "/timers.csv"), last_step_(start), root_(root) {
  if (!root) return;
  io::write_text_atomically(path_, start > 0 ? timer_rows_until(path_, start) : timer_columns);
  file_.open(path_, std::ios::app);
}

void TimerFile::add(std::string const& name, double seconds) {
  auto const place = std::find_if(own_.begin(), own_.end(), [&](auto const& t) { return t.name == name; });
  auto& timer = place == own_.end() ? own_.emplace_back(engine::Timer{name, 0.0, 0}) : *place;
  timer.seconds += seconds;
  ++timer.calls;
}

std::string TimerFile::write(std::int64_t step, std::vector<engine::Timer> timers, comm::Communicator& world) {
  timers.insert(timers.end(), own_.begin(), own_.end());
  auto const steps = static_cast<double>(std::max<std::int64_t>(step - last_step_, 1));
  auto const n = timers.size();
  std::vector<double> least(n), sum(n), most(n);
  std::vector<std::int64_t> calls(n);
  for (std::size_t i = 0; i < n; ++i) {
    auto const place =
        std::find_if(before_.begin(), before_.end(), [&](auto const& t) { return t.name == timers[i].name; });
    auto const old = place == before_.end() ? engine::Timer{} : *place;
    least[i] = sum[i] = most[i] = 1e3 * (timers[i].seconds - old.seconds) / steps;
    calls[i] = timers[i].calls - old.calls;
  }
  auto const over_ranks = [&](auto& values, comm::ElementType type, comm::Reduction how) {
    world.all_reduce(values.data(), static_cast<std::int64_t>(n), type, how).wait();
  };
  over_ranks(least, comm::Type::float64, comm::Reduction::min);
  over_ranks(sum, comm::Type::float64, comm::Reduction::sum);
  over_ranks(most, comm::Type::float64, comm::Reduction::max);
  over_ranks(calls, comm::Type::int64, comm::Reduction::max);
  before_ = std::move(timers);
  last_step_ = step;
  std::string text, rows;
  for (std::size_t i = 0; i < n; ++i) {
    if (calls[i] == 0) continue;
    double const mean = sum[i] / world.size();
    rows += fmt::format("{},{},{},{:.6f},{:.6f},{:.6f}\n", step, before_[i].name, calls[i], least[i], mean, most[i]);
    text += fmt::format("{}  {:<22}{:>7} {:>11.3f} {:>11.3f} {:>11.3f}", text.empty() ? "" : "\n", before_[i].name,
                        calls[i], least[i], mean, most[i]);
  }
  if (!root_) return text;
  io::apart([&] { file_ << rows << std::flush; });
  if (!file_ && !std::exchange(warned_, true))
    base::warn_root(path_ + " cannot be written; the run goes on without it");
  return text;
}

}  // namespace p3d::run
