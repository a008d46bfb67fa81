// SPDX-License-Identifier: Apache-2.0
#include "timer_file.hpp"

#include <p3d/io/file_watch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace p3d::run {

namespace {
constexpr char const* timer_columns = "step,timer,calls,min_ms,mean_ms,max_ms\n";
}  // namespace

TimerFile::TimerFile(std::string const& output_dir, std::int64_t start, bool root) : last_step_(start) {
  if (root)
    file_.emplace(output_dir + "/timers.csv", start, timer_columns,
                  [](std::string const& line) { return std::count(line.begin(), line.end(), ',') == 5; });
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
  if (file_) io::apart([&] { file_->append(rows); });
  return text;
}

}  // namespace p3d::run
