// SPDX-License-Identifier: Apache-2.0
// The report on recorded steps. Three bubbles are compared: of the schedule (simulated with the mean cost of each kind
// of action), of uneven times (simulated with each action's own time), and the measured one. Their differences tell
// what the schedule, uneven times, and messages cost.
//
// Example: 20.0 % simulated, 21.5 % replayed, 23.0 % measured: uneven times add 1.5 points, messages and waking up 1.5.
#include "trace_report.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/schedule/graph.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "bubble.hpp"

namespace p3d::report {

namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;

/// The coordinates of a pipeline along the axes that p3d trains with: "dp 0, tp 1".
std::string where_text(layout::PerAxis const& where) {
  std::vector<std::string> parts;
  for (auto a : layout::stage_axes.list()) {
    if (config::row_of(a).trained) parts.push_back(fmt::format("{} {}", layout::name(a), where[a]));
  }
  std::reverse(parts.begin(), parts.end());
  return base::join(parts);
}

/// The mean seconds of actions by (op, stage); `repeats` is how often the program ran.
class Means {
public:
  Means(Program const& program, double repeats) {
    for (auto const& actions : program.ranks)
      for (Action const& a : actions) counts_[key(a)] += repeats;
  }
  void add(Action const& a, double seconds) { sums_[key(a)] += seconds; }
  /// The mean of an op on a stage; negative when the program has no such action.
  double of(Op op, int stage) const {
    auto const count = counts_.find({op, stage});
    if (count == counts_.end()) return -1.0;
    auto const sum = sums_.find({op, stage});
    return sum == sums_.end() ? 0.0 : sum->second / count->second;
  }

  /// The mean over all actions whose op is of a kind; 0 without any.
  template <class Kind>
  double of_all(Kind const& kind) const {
    double sum = 0.0, count = 0.0;
    for (auto const& [key, seconds] : sums_) sum += kind(key.first) ? seconds : 0.0;
    for (auto const& [key, number] : counts_) count += kind(key.first) ? number : 0.0;
    return count > 0.0 ? sum / count : 0.0;
  }

private:
  using Key = std::pair<Op, int>;
  static Key key(Action const& a) { return {a.op, a.stage}; }
  std::map<Key, double> counts_, sums_;
};

/// The costs of a stage, from the means of its actions.
plan::StageCost stage_cost(Means const& means, int stage) {
  double const whole = means.of(Op::backward, stage), input = means.of(Op::backward_input, stage);
  plan::StageCost cost{.forward = means.of(Op::forward, stage)};
  if (input < 0) {  // backward is never split: only the sum of its parts is known
    cost.input = cost.weight = whole / 2;
  } else {
    cost.input = input;
    cost.weight = means.of(Op::backward_weight, stage);
    cost.backward = whole;
  }
  return cost;
}

/// The costs of vocabulary actions, from the means over all ranks.
plan::VocabularyCost vocabulary_cost(Means const& means) {
  auto const mean = [&](Op op) { return means.of_all([=](Op other) { return other == op; }); };
  return {mean(Op::embed_forward), mean(Op::head_forward), mean(Op::head_backward), mean(Op::embed_backward)};
}

/// The times of one step of one pipeline: from the first begin to the last end of its compute actions.
struct StepTimes {
  double begin = std::numeric_limits<double>::infinity();
  double end = -begin;
  double busy = 0.0;  ///< seconds of compute, over all ranks
};

/// The times of a step. Events that wait are left out: the bubble is the time in which nothing is computed.
StepTimes step_times(PipelineRecord const& pipeline, std::size_t step) {
  StepTimes t;
  for (auto const& steps : pipeline.ranks)
    for (engine::RecordedEvent const& e : steps[step].events) {
      if (e.waits || !schedule::computes(e.action.op)) continue;
      t.begin = std::min(t.begin, e.begin);
      t.end = std::max(t.end, e.end);
      t.busy += e.end - e.begin;
    }
  return t;
}

/// The makespan of a step in a simulation in which every action takes the time that it really took.
double replayed_makespan(schedule::ValidProgram const& program, plan::PipelineCosts costs,
                         PipelineRecord const& pipeline, std::size_t step) {
  auto const microbatches = static_cast<std::size_t>(program->num_microbatches);
  costs.microbatches.assign(costs.stages.size() * microbatches, {0, 0, 0, 0});
  costs.vocabulary_microbatches.assign(pipeline.ranks.size() * microbatches, {});
  for (std::size_t r = 0; r < pipeline.ranks.size(); ++r)
    for (engine::RecordedEvent const& e : pipeline.ranks[r][step].events) {
      if (e.waits || !schedule::computes(e.action.op)) continue;
      P3D_REQUIRE(e.action.microbatch >= 0, "time that a rank computed belongs to an action");
      if (schedule::is_vocabulary(e.action.op)) {
        auto& cost = costs.vocabulary_microbatches[r * microbatches + static_cast<std::size_t>(e.action.microbatch)];
        auto& part = e.action.op == Op::embed_forward   ? cost.embed_forward
                     : e.action.op == Op::head_forward  ? cost.head_forward
                     : e.action.op == Op::head_backward ? cost.head_backward
                                                        : cost.embed_backward;
        part += e.end - e.begin;
        continue;
      }
      auto& cost = costs.microbatches[static_cast<std::size_t>(e.action.stage) * microbatches +
                                      static_cast<std::size_t>(e.action.microbatch)];
      auto& part = e.action.op == Op::forward          ? cost.forward
                   : e.action.op == Op::backward       ? cost.backward
                   : e.action.op == Op::backward_input ? cost.input
                                                       : cost.weight;
      part += e.end - e.begin;
    }
  return plan::simulate(program, costs, program.execution()).makespan;
}

/// Messages that had arrived before they were waited for, and the seconds that receiving them took all the same: MPI
/// copies them then, in the time of the rank.
struct Intake {
  double seconds = 0.0, messages = 0.0;
};

/// Adds the messages of one step.
void add_intake(PipelineRecord const& pipeline, std::size_t step, double transfer, Intake& intake) {
  std::map<std::tuple<Op, int, int>, double>
      sent;  // by the receive that it is for: (op, stage, microbatch) -> end of the send
  for (auto const& steps : pipeline.ranks)
    for (engine::RecordedEvent const& e : steps[step].events) {
      if (e.waits || !schedule::is_send(e.action.op)) continue;
      bool const forward = e.action.op == Op::send_activation;
      sent[{forward ? Op::recv_activation : Op::recv_gradient, e.action.stage + (forward ? 1 : -1),
            e.action.microbatch}] = e.end;
    }
  for (auto const& steps : pipeline.ranks)
    for (engine::RecordedEvent const& e : steps[step].events) {
      if (!e.waits || !schedule::is_recv(e.action.op)) continue;
      auto const send = sent.find({e.action.op, e.action.stage, e.action.microbatch});
      if (send == sent.end() || e.begin < send->second + transfer) continue;
      intake.seconds += e.end - e.begin;
      intake.messages += 1.0;
    }
}

/// The time that exchanges of the vocabulary take (schedule/vocabulary.hpp) from the moment when the last rank joins.
/// It is read off the waits that began before that moment.
class ExchangeTimes {
public:
  ExchangeTimes(Program const& program, schedule::Execution execution) {
    if (!program.divides_vocabulary) return;
    auto const graph = schedule::build_graph(program, execution);
    for (int rank = 0; rank < program.num_ranks; ++rank) {
      auto const& actions = program.ranks[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i)
        for (schedule::Edge const& e : graph.edges(rank, static_cast<std::ptrdiff_t>(i))) {
          // Not those of other microbatches, for which an action asks or whose buffer it takes.
          if (graph.kind(e.event) != schedule::EventKind::exchange) continue;
          if (graph.microbatch(e.event) != actions[i].microbatch) continue;
          auto& exchanges = e.tie == schedule::Tie::gives ? begun_by_ : waited_for_by_;
          exchanges[{actions[i].op, actions[i].stage}] = graph.exchange(e.event);
        }
    }
  }

  void add(PipelineRecord const& pipeline, std::size_t step) {
    if (begun_by_.empty()) return;
    std::map<std::pair<Exchange, int>, double>
        joined;  // the end of the last rank's action that joins, keyed by exchange and microbatch
    auto const each = [&](auto const& visit) {
      for (auto const& steps : pipeline.ranks)
        for (engine::RecordedEvent const& e : steps[step].events) visit(e);
    };
    each([&](engine::RecordedEvent const& e) {
      if (e.waits) return;
      if (auto const begun = begun_by_.find({e.action.op, e.action.stage}); begun != begun_by_.end()) {
        auto& end = joined[{begun->second, e.action.microbatch}];
        end = std::max(end, e.end);
      }
    });
    each([&](engine::RecordedEvent const& e) {
      auto const waited = waited_for_by_.find({e.action.op, e.action.stage});
      if (!e.waits || waited == waited_for_by_.end()) return;
      auto const join = joined.find({waited->second, e.action.microbatch});
      if (join == joined.end() || e.begin >= join->second) return;
      auto& sum = sums_[waited->second];
      sum.first += std::max(0.0, e.end - join->second);
      sum.second += 1.0;
    });
  }
  /// The mean over some kinds of exchanges, or `otherwise` where nobody waited.
  double mean(std::initializer_list<schedule::VocabularyExchange> kinds, double otherwise) const {
    double seconds = 0.0, count = 0.0;
    for (auto kind : kinds)
      if (auto const sum = sums_.find(kind); sum != sums_.end()) {
        seconds += sum->second.first;
        count += sum->second.second;
      }
    return count > 0.0 ? seconds / count : otherwise;
  }

private:
  using Exchange = schedule::VocabularyExchange;
  std::map<std::pair<Op, int>, Exchange> begun_by_, waited_for_by_;  ///< keyed by the op and stage of the action
  std::map<Exchange, std::pair<double, double>> sums_;               ///< summed seconds of the waits, and their number
};

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

/// A timeline for the ranks of a program, without events.
schedule::Timeline empty_timeline(Program const& program) {
  schedule::Timeline t;
  t.num_ranks = program.num_ranks;
  t.stages_per_rank = (program.num_stages + program.num_ranks - 1) / program.num_ranks;
  return t;
}

/// Appends the events of one step to a timeline, with times from `origin` on.
void append(schedule::Timeline& timeline, PipelineRecord const& pipeline, std::size_t step, double origin) {
  for (std::size_t r = 0; r < pipeline.ranks.size(); ++r) {
    auto const& recorded = pipeline.ranks[r][step];
    for (engine::RecordedEvent const& e : recorded.events)
      timeline.events.push_back({static_cast<int>(r), e.action, e.begin - origin, e.end - origin, e.waits != 0,
                                 static_cast<int>(recorded.number)});
  }
}

/// A text for each rank: its share of the makespan in which it did not compute.
std::vector<std::string> notes(schedule::Timeline const& timeline, double makespan) {
  std::vector<std::string> out;
  for (auto const& times : schedule::rank_times(timeline))
    out.push_back("waits " + percent(std::max(0.0, 1.0 - times.compute / makespan)));
  return out;
}

std::string seconds_text(double seconds) {
  return seconds >= 1.0 ? fmt::format("{:.4g} s", seconds) : fmt::format("{:.4g} ms", 1e3 * seconds);
}

}  // namespace

TraceReport report(std::string const& schedule, schedule::ValidProgram const& proved,
                   std::vector<PipelineRecord> const& pipelines, double transfer, double message_bytes,
                   std::int64_t warm_up) {
  Program const& program = proved;
  P3D_REQUIRE(!pipelines.empty() && !pipelines.front().ranks.front().empty(), "a report needs a recorded step");
  auto const& first = pipelines.front();
  std::size_t const recorded = first.ranks.front().size();
  // The first step of a run also warms up caches and connections. It counts only where there is no other.
  std::size_t const begin = recorded > 1 && first.ranks.front().front().number == warm_up ? 1 : 0;
  TraceReport out;
  out.steps = static_cast<int>(recorded - begin);
  double const repeats = static_cast<double>(recorded - begin) * static_cast<double>(pipelines.size());

  // One pass over all events collects the sums that all figures below are made of.
  Means means(program, repeats);
  double busy = 0.0, spans = 0.0;
  Intake intake;
  ExchangeTimes exchanges(program, proved.execution());
  std::vector<double> update(static_cast<std::size_t>(program.num_ranks), 0.0);
  std::vector<std::pair<double, std::size_t>> lengths;
  for (auto const& pipeline : pipelines)
    for (std::size_t s = begin; s < recorded; ++s) {
      auto const times = step_times(pipeline, s);
      add_intake(pipeline, s, transfer, intake);
      exchanges.add(pipeline, s);
      busy += times.busy;
      spans += times.end - times.begin;
      if (&pipeline == &first) lengths.emplace_back(times.end - times.begin, s);
      for (std::size_t r = 0; r < pipeline.ranks.size(); ++r)
        for (engine::RecordedEvent const& e : pipeline.ranks[r][s].events) {
          if (e.waits) continue;
          if (e.action.op == Op::optimizer_step)
            update[r] += (e.end - e.begin) / repeats;
          else
            means.add(e.action, e.end - e.begin);
        }
    }
  out.measured_bubble = 1.0 - busy / (spans * program.num_ranks);
  out.measured_makespan = spans / repeats;

  // The costs of the program's actions are the means of what was measured. Messages have two parts: the latency
  // (`transfer`, measured by ping-pong) and the time that sends and receives take from the ranks.
  for (int s = 0; s < program.num_stages; ++s) {
    out.costs.stages.push_back(stage_cost(means, s));
    out.costs.reduce.push_back(std::max(0.0, means.of(Op::reduce_gradients, s)));
  }
  out.costs.vocabulary = vocabulary_cost(means);
  using Exchange = schedule::VocabularyExchange;
  out.costs.vocabulary.sum = exchanges.mean({Exchange::sum, Exchange::input_gradient}, transfer);
  out.costs.vocabulary.broadcast = exchanges.mean({Exchange::output, Exchange::gradient}, transfer);
  out.costs.vocabulary.gather = exchanges.mean({Exchange::parts}, transfer);
  out.costs.send = means.of_all(schedule::is_send);
  out.costs.receive =
      means.of_all(schedule::is_recv) + (intake.messages > 0.0 ? intake.seconds / intake.messages : 0.0);
  out.costs.step = *std::max_element(update.begin(), update.end());
  out.costs.latency = transfer;
  out.costs.message_bytes = message_bytes;
  out.simulated = plan::simulate(program, out.costs, proved.execution(), true);
  // A second simulation gives each action its own time. It shows how much of the bubble comes from uneven times, and
  // not from the schedule.
  double replayed = 0.0;
  for (auto const& pipeline : pipelines)
    for (std::size_t s = begin; s < recorded; ++s) replayed += replayed_makespan(proved, out.costs, pipeline, s);
  out.replayed_bubble = 1.0 - busy / (replayed * program.num_ranks);

  // The picture shows the step of median length: an unusually long or short step would mislead.
  auto const middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  auto const typical = step_times(first, middle->second);
  double origin = typical.begin;
  for (auto const& pipeline : pipelines) origin = std::min(origin, step_times(pipeline, 0).begin);

  for (auto const& pipeline : pipelines) {
    auto t = empty_timeline(program);
    t.title = fmt::format("{}, {}: measured", schedule, where_text(pipeline.where));
    for (std::size_t s = 0; s < recorded; ++s) append(t, pipeline, s, origin);
    out.timelines.push_back(std::move(t));
  }

  auto measured = empty_timeline(program);
  append(measured, first, middle->second, typical.begin);
  double const span = typical.end - typical.begin;
  measured.title =
      fmt::format("{}, {}, {}: measured, step {}{}", schedule, base::counted(program.num_ranks, "rank"),
                  base::counted(program.num_microbatches, "microbatch"), first.ranks.front()[middle->second].number,
                  pipelines.size() > 1 ? fmt::format(" of the first of {} pipelines", pipelines.size()) : "");
  measured.rank_notes = notes(measured, span);
  measured.caption.push_back(fmt::format("first to last action {}; bubble (time in which ranks do not compute) {}",
                                         seconds_text(span), percent(1.0 - typical.busy / (span * program.num_ranks))));
  measured.caption.push_back(fmt::format(
      "over {}: bubble {} = {} of the schedule {:+.1f} of uneven times {:+.1f} of messages and waking up",
      base::counted(out.steps, "step"), percent(out.measured_bubble), percent(out.simulated.bubble()),
      100 * (out.replayed_bubble - out.simulated.bubble()), 100 * (out.measured_bubble - out.replayed_bubble)));
  auto simulated = out.simulated.timeline;
  simulated.title = "the same step simulated with the measured mean costs";
  simulated.rank_notes = notes(simulated, out.simulated.makespan);
  simulated.caption.push_back(fmt::format("first to last action {}; bubble {}; a message takes {}",
                                          seconds_text(out.simulated.makespan), percent(out.simulated.bubble()),
                                          seconds_text(transfer)));
  out.drawn = {std::move(measured), simulated};
  simulated.title = fmt::format("{}: simulated with the measured costs", schedule);
  // In the trace file the simulated step lies at the time of the measured one, so that a reader sees both at one place.
  for (auto& e : simulated.events) {
    e.start += typical.begin - origin;
    e.end += typical.begin - origin;
    e.step = static_cast<int>(first.ranks.front()[middle->second].number);
  }
  out.timelines.push_back(std::move(simulated));
  return out;
}

std::string summary(TraceReport const& r, Program const& program) {
  double const predicted = r.simulated.bubble();
  double const difference = 100.0 * (r.measured_bubble - predicted);
  auto const busiest = predicted < large_bubble ? Busiest{} : busiest_rank(r.simulated);
  auto const cause = busiest.rank < 0 ? std::string()
                                      : fmt::format(
                                            "\n  the busiest is pipeline rank {}, with {:.2f} of the mean work: "
                                            "p3d --check says what it has, and which keys help",
                                            busiest.rank, busiest.ratio);
  return fmt::format(
      "Pipeline bubble of {} on {} over {}: predicted {} (simulated with the measured costs), measured {}, difference "
      "{:+.1f} points{}\n"
      "  the schedule loses {}, uneven times of an action {:+.1f} (simulated with each action's own time: {}), "
      "messages and waking up {:+.1f}; "
      "makespan {} predicted, {} measured{}",
      base::counted(program.num_microbatches, "microbatch"), base::counted(program.num_ranks, "pipeline rank"),
      base::counted(r.steps, "step"), percent(predicted), percent(r.measured_bubble), difference,
      predicted > 0 ? fmt::format(" ({:+.1f} % of the prediction)", difference / predicted) : "", percent(predicted),
      100 * (r.replayed_bubble - predicted), percent(r.replayed_bubble), 100 * (r.measured_bubble - r.replayed_bubble),
      seconds_text(r.simulated.makespan), seconds_text(r.measured_makespan), cause);
}

}  // namespace p3d::report
