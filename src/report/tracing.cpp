// SPDX-License-Identifier: Apache-2.0
// The trace of a run. Each rank records its actions with its own clock; the clocks are compared with rank 0's at the
// beginning and at the end, and each recorded time is moved to rank 0's clock by a straight line between the two. Rank
// 0 gathers the steps of all ranks and writes the report's files. Example: a clock that is 2 ms ahead at the beginning
// and 4 ms at the end counts as 3 ms ahead in the middle.
#include <p3d/report/tracing.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/plan/pipeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "clock_offset.hpp"
#include "trace_report.hpp"

namespace p3d::report {

namespace {

/// The most actions of all ranks and kept steps in all. The trace file has about 150 bytes for each.
constexpr std::size_t most_actions = 200'000;
constexpr int trace_tag = 8;

/// The number of last steps that a recorder keeps.
std::size_t steps_to_keep(engine::RunPlan const& plan) {
  std::size_t actions = 0;
  for (auto const& list : plan.training->ranks)
    actions += 2 * list.size();  // each action may wait, which is a second event
  auto const pipelines = static_cast<std::size_t>(plan.grid.num_groups(layout::Axis::pp));
  return std::max<std::size_t>(2, most_actions / (actions * pipelines));
}

/// Packs steps for a message: a step's number, the number of its events, and the events.
std::vector<char> pack(std::deque<engine::Recorder::Step> const& steps) {
  static_assert(std::is_trivially_copyable_v<engine::RecordedEvent>);
  std::vector<char> bytes;
  auto const put = [&](void const* data, std::size_t size) {
    auto const* from = static_cast<char const*>(data);
    bytes.insert(bytes.end(), from, from + size);
  };
  for (auto const& step : steps) {
    std::int64_t const head[2]{step.number, static_cast<std::int64_t>(step.events.size())};
    put(head, sizeof(head));
    put(step.events.data(), step.events.size() * sizeof(engine::RecordedEvent));
  }
  return bytes;
}

/// The steps from the bytes of pack().
std::vector<engine::Recorder::Step> unpack(std::vector<char> const& bytes) {
  std::vector<engine::Recorder::Step> steps;
  auto const* from = bytes.data();
  auto const* const end = from + bytes.size();
  while (from < end) {
    std::int64_t head[2]{};
    std::memcpy(head, from, sizeof(head));
    from += sizeof(head);
    auto& step = steps.emplace_back();
    step.number = head[0];
    step.events.resize(static_cast<std::size_t>(head[1]));
    if (!step.events.empty())
      std::memcpy(static_cast<void*>(step.events.data()), from, step.events.size() * sizeof(engine::RecordedEvent));
    from += step.events.size() * sizeof(engine::RecordedEvent);
  }
  return steps;
}

/// The recorded steps of all ranks, one entry for each rank; on rank 0 only.
std::vector<std::vector<engine::Recorder::Step>> gather(comm::Communicator& world,
                                                        std::deque<engine::Recorder::Step> const& mine) {
  auto const bytes = pack(mine);
  auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<std::vector<engine::Recorder::Step>> all;
  if (world.rank() != 0) {
    // The size goes first, so that rank 0 knows how much memory the steps need.
    world.send(&size, 1, comm::Type::int64, 0, trace_tag).wait();
    world.send(bytes.data(), size, comm::Type::byte, 0, trace_tag).wait();
    return all;
  }
  all.emplace_back(mine.begin(), mine.end());
  for (int rank = 1; rank < world.size(); ++rank) {
    world.recv(&size, 1, comm::Type::int64, rank, trace_tag).wait();
    std::vector<char> theirs(static_cast<std::size_t>(size));
    world.recv(theirs.data(), size, comm::Type::byte, rank, trace_tag).wait();
    all.push_back(unpack(theirs));
  }
  return all;
}

/// The recorded steps, sorted into pipelines.
std::vector<PipelineRecord> by_pipeline(layout::RankGrid const& grid,
                                        std::vector<std::vector<engine::Recorder::Step>> all) {
  std::vector<PipelineRecord> out;
  for (auto const& ranks : grid.groups(layout::Axis::pp)) {
    auto& pipeline = out.emplace_back();
    pipeline.where = grid.coordinates(ranks.front());
    for (int rank : ranks) pipeline.ranks.push_back(std::move(all[static_cast<std::size_t>(rank)]));
  }
  return out;
}

}  // namespace

struct Tracing::State {
  engine::AnyTrainer& trainer;
  schedule::DrawTimelines draw;
  engine::Recorder recorder;
  ClockOffset first;
  std::int64_t warm_up;
};

Tracing::Tracing(engine::AnyTrainer& trainer, schedule::DrawTimelines draw) {
  if (!trainer.config().run.trace) return;
  state_ = std::make_unique<State>(
      State{trainer, std::move(draw), engine::Recorder(steps_to_keep(trainer.plan())), {}, trainer.steps_done() + 1});
  state_->first = measure_clock_offset(trainer.mesh().world(), engine::Recorder::now);
  trainer.record_into(&state_->recorder);
}

Tracing::~Tracing() {
  if (state_) state_->trainer.record_into(nullptr);
}

std::string Tracing::finish() {
  if (!state_ || state_->recorder.steps().empty()) return {};
  auto& trainer = state_->trainer;
  trainer.record_into(nullptr);
  auto& world = trainer.mesh().world();
  // Clocks drift during a run. The second measurement makes the drift known, and every recorded time is corrected by
  // it.
  auto const last = measure_clock_offset(world, engine::Recorder::now);
  auto steps = state_->recorder.steps();
  for (auto& step : steps)
    for (auto& e : step.events)
      for (double* time : {&e.begin, &e.end}) *time += offset_at(state_->first, last, *time);

  auto const& c = trainer.config();
  auto const& plan = trainer.plan();
  double const bytes = plan::model_costs(c, plan.stages).message_bytes;
  // A transfer is measured between the first two ranks of a pipeline.
  int const neighbour = c.parallel.pp > 1 ? plan.grid.group(layout::Axis::pp, 0)[1] : 0;
  double const transfer = measure_transfer(world, neighbour, static_cast<std::size_t>(bytes));
  auto all = gather(world, steps);
  if (world.rank() != 0) return {};

  // From here on rank 0 works alone: it has the steps of all ranks on its own clock.
  auto made = report(c.pipeline.schedule, plan.training, by_pipeline(plan.grid, std::move(all)), transfer, bytes,
                     state_->warm_up);
  for (int r = 0; r < c.parallel.pp; ++r) {
    auto const& memory = plan.memory_of(r);  // the memory that the arena has, exactly
    made.drawn.front().rank_notes[static_cast<std::size_t>(r)] +=
        ", " + base::human_bytes(static_cast<double>(memory.activations + memory.workspace));
  }
  made.drawn.front().caption.emplace_back(
      "at the right: share of the time in which a rank does not compute, and its memory for activations");
  auto const pipelines = plan.grid.groups(layout::Axis::pp);  // in the order of by_pipeline
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    for (std::size_t pp = 0; pp < pipelines[i].size(); ++pp)
      made.timelines[i].rank_names.push_back(fmt::format("rank {} (pp {})", pipelines[i][pp], pp));
  }
  std::vector<std::string> written;
  auto const write = [&](char const* name, std::string const& text) {
    auto const path = c.run.output_dir + "/" + name;
    try {
      io::write_text_atomically(path, text);
      written.push_back(path);
    } catch (base::Error const& e) {  // the run is over, and its results are elsewhere
      base::warn_root(e.what());
    }
  };
  write("trace.json", schedule::to_chrome_trace(made.timelines));
  if (state_->draw) write("trace.svg", state_->draw(made.drawn, fmt::format("p3d run \"{}\"", c.run.name)));
  write("costs.csv", plan::to_csv(made.costs));
  auto const said = summary(made, plan.training);
  return written.empty() ? said : fmt::format("{}\nWritten: {}", said, base::join(written));
}

}  // namespace p3d::report
