// SPDX-License-Identifier: Apache-2.0
// Chooses the keys of [memory] that the input leaves free, for memory.limit: every sensible combination is planned and
// simulated, and the quickest one that fits is taken. Example: where everything fits, the input's own keys win, since
// recomputing and moving only cost time.
#include <p3d/engine/memory_choice.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

namespace p3d::engine {

namespace {

using config::Memory;
using config::MessageEvery;
using config::OffloadTo;
using config::Recompute;
using config::Shard;

constexpr double disk_bytes_per_second = 1e9;
constexpr double gib = 1024.0 * 1024.0 * 1024.0;

/// A set of keys, as people write it.
struct Candidate {
  Memory memory;
  std::string text;
  double seconds = 0.0;
  double bytes = 0.0;  ///< on the rank that needs most; at least these where `few`
  bool few = false;    ///< bytes are those of few microbatches
};

/// One thing that may be chosen.
struct Option {
  std::string text;
  std::function<void(Memory&)> set;
};

std::vector<Option> recompute_options(config::Config const& c) {
  std::vector<Option> out{{"recompute = \"none\"", [](Memory& m) { m.recompute = Recompute::none; }}};
  auto const list = [&](char const* text, config::RecomputedOps ops) {
    out.push_back({fmt::format("recompute = {}", text), [ops](Memory& m) {
                     m.recompute = Recompute::list;
                     m.recompute_ops = ops;
                   }});
  };
  list("[\"norm\", \"activation\"]", {.norm = true, .activation = true});
  list("[\"norm\", \"activation\", \"attention\"]", {.norm = true, .activation = true, .attention = true});
  auto const full = [&](std::int64_t layers) {
    auto const text = layers == 0 ? std::string() : fmt::format(", recompute_layers = {}", layers);
    out.push_back({"recompute = \"full\"" + text, [layers](Memory& m) {
                     m.recompute = Recompute::full;
                     m.recompute_layers = layers;
                   }});
  };
  auto const stages = std::int64_t{c.parallel.pp} * std::max(1, c.pipeline.virtual_stages);
  for (std::int64_t n = 1; n < (c.model.layers + stages - 1) / stages; n *= 2) full(n);
  full(0);
  return out;
}

std::vector<Option> shard_options() {
  std::vector<Option> out;
  for (auto shard : {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters})
    out.push_back({fmt::format("shard = \"{}\"", to_string(shard)), [shard](Memory& m) { m.shard = shard; }});
  return out;
}

/// Whole weights and gradients: for the whole step, or for a layer at a time.
std::vector<Option> gather_options() {
  return {{"", [](Memory& m) { m.gather = MessageEvery::step; }},
          {"gather = \"microbatch\"", [](Memory& m) { m.gather = MessageEvery::microbatch; }}};
}
std::vector<Option> reduce_options() {
  return {{"", [](Memory& m) { m.reduce = MessageEvery::step; }},
          {"reduce = \"microbatch\"", [](Memory& m) { m.reduce = MessageEvery::microbatch; }}};
}

std::vector<Option> offload_options() {
  return {{"offload_optimizer = \"none\"", [](Memory& m) { m.offload_optimizer = OffloadTo::none; }},
          {"offload_optimizer = \"disk\"", [](Memory& m) { m.offload_optimizer = OffloadTo::disk; }}};
}

std::vector<Option> parameter_options() {
  return {{"", [](Memory&) {}},
          {"offload_parameters = \"disk\"", [](Memory& m) { m.offload_parameters = OffloadTo::disk; }}};
}

config::Config with_memory(config::Config const& c, Memory const& m) {
  auto out = c;
  out.memory = m;
  return out;
}

/// Whether the rules between keys let these be, and offloaded parameters are the last resort where they are a choice.
bool sensible(config::Config const& c, Memory const& m) {
  if (!config::allowed(with_memory(c, m))) return false;
  return !m.offloads_parameters() || !c.memory.free.offload_parameters || m.offload_optimizer != OffloadTo::none;
}

/// True where neither what is recomputed nor the time of anything decides about the program.
bool has_one_program(config::Config const& c) {
  auto const& schedule = c.pipeline.schedule;
  return schedule != "auto" && schedule != "file" && c.latest_delay() == 0 && !c.divides_vocabulary() &&
         !plan::execution_of(c).pairs;
}

/// True where the program also does the same work for every microbatch, and more of them need no less memory: then a
/// plan of few of them tells the seconds of a step.
bool repeats_itself(config::Config const& c) {
  auto const& p = c.pipeline;
  return has_one_program(c) && (p.schedule == "1f1b" || p.schedule == "interleaved_1f1b") &&
         p.weight_deferral_limit == 0 && c.memory.recompute_microbatches_kept == 0 &&
         c.memory.offload_activations == OffloadTo::none && !c.compresses();
}

/// The keys of [memory] that decide about one program.
auto program_keys(Memory const& m) {
  return std::tuple(m.shard, m.gather, m.reduce, m.offload_parameters, m.offload_activations);
}

/// Prices candidates. Those that follow each other and differ in what is recomputed, or in who holds the optimizer's
/// state, share the stages and the program, which take most of the time.
class Prices {
public:
  explicit Prices(config::Config const& c) : c_(c) {}

  /// Sets seconds of a step, as far as they depend on the choice, and the most bytes of a rank; for few microbatches
  /// where that is enough to compare, unless `whole`. Returns false where the plan is refused, and remembers why.
  bool set(Candidate& x, bool whole) {
    try {
      set_or_throw(x, whole);
      return true;
    } catch (base::Error const& e) {
      if (e.code() != base::ExitCode::bad_input) throw;
      if (!refusal_) refusal_ = std::current_exception();
      return false;
    }
  }
  /// Throws the first refusal.
  [[noreturn]] void refuse() const {
    P3D_REQUIRE(refusal_, "where no candidate is left a plan was refused");
    std::rethrow_exception(refusal_);
  }

private:
  plan::RunPlan const& plan_of(config::Config const& tried) {
    auto const platform = engine::platform();
    bool const shares = plan_ && has_one_program(tried) && planned_.batch == tried.batch &&
                        program_keys(planned_.memory) == program_keys(tried.memory);
    if (shares)
      plan_ = plan::make_run_plan(tried, plan_->stages, plan_->training, platform, plan_->stream);
    else
      plan_ = plan::make_run_plan(tried, platform);
    planned_ = tried;
    return *plan_;
  }

  void set_or_throw(Candidate& x, bool whole) {
    auto const all = with_memory(c_, x.memory);
    auto const tried = !whole && repeats_itself(all) ? plan::with_few_microbatches(all) : all;
    auto const& plan = plan_of(tried);
    x.few = tried.batch.microbatches < all.batch.microbatches;
    plan::MachineRates const rates;
    auto const d = static_cast<double>(c_.parallel.product(layout::token_axes));
    auto const types = plan::type_bytes(c_);
    double most_numbers = 0.0, most_away = 0.0;
    x.bytes = 0.0;
    for (int r = 0; r < c_.parallel.pp; ++r) {
      double numbers = 0.0;
      for (int s : plan.stages.stages_of(r))
        numbers += static_cast<double>(layout::StageParams(plan.table, plan.stages, s, plan.grid.sizes(),
                                                           layout::PerAxis::only(layout::Axis::pp, r))
                                           .flat_size());
      most_numbers = std::max(most_numbers, numbers);
      auto const& memory = plan.memory_of(r);
      most_away = std::max(most_away, static_cast<double>(memory.offloaded));
      x.bytes = std::max(x.bytes, static_cast<double>(memory.total()));
    }
    auto const gradients = most_numbers * static_cast<double>(types.gradient);
    auto const weights = most_numbers * static_cast<double>(types.storage);
    auto const microbatches = static_cast<double>(all.batch.microbatches);
    double const gathers = x.memory.gather == MessageEvery::step ? 1.0 : 2.0 * microbatches;
    double const sums = x.memory.reduce == MessageEvery::step ? 1.0 : microbatches;
    double const travels =
        (d - 1) / d * (x.memory.shard == Shard::none ? 2 * gradients : sums * gradients + gathers * weights);
    double const fetched = x.memory.offloads_parameters() ? gathers * weights / (x.memory.divides() ? d : 1.0) : 0.0;
    double const swapped = 2 * most_away + fetched + plan::offloaded_bytes_per_step(tried, plan);
    double const again =
        plan::recompute_flops_per_step(tried, plan) * microbatches / static_cast<double>(tried.batch.microbatches);
    double const flops = plan::model_flops_per_step(all) + again;
    x.seconds = flops / c_.num_ranks() / rates.flops + travels / rates.bandwidth + swapped / disk_bytes_per_second;
  }

  config::Config const& c_;
  std::optional<plan::RunPlan> plan_;  ///< the plan for planned_
  config::Config planned_;
  std::exception_ptr refusal_;
};

std::vector<Candidate> candidates(config::Config const& c) {
  std::vector<Candidate> all{{c.memory, ""}};
  auto const multiply = [&](bool free, std::vector<Option> const& options, auto const& matters) {
    if (!free) return;
    std::vector<Candidate> more;
    for (auto const& x : all) {
      if (!matters(x.memory)) {
        more.push_back(x);
        continue;
      }
      for (auto const& option : options) {
        auto y = x;
        option.set(y.memory);
        y.text += (y.text.empty() || option.text.empty() ? "" : ", ") + option.text;
        more.push_back(std::move(y));
      }
    }
    all = std::move(more);
  };
  auto const& free = c.memory.free;
  auto const always = [](Memory const&) { return true; };
  multiply(free.recompute, recompute_options(c), always);
  multiply(free.shard, shard_options(), always);
  multiply(free.offload_optimizer, offload_options(), always);
  multiply(free.offload_parameters, parameter_options(), always);
  // By itself, offload_parameters brings weights for each use.
  multiply(free.gather, gather_options(),
           [](Memory const& m) { return m.moves_weights() && !m.offloads_parameters(); });
  if (free.gather)
    for (auto& x : all)
      if (x.memory.offloads_parameters()) x.memory.gather = MessageEvery::microbatch;
  multiply(free.reduce, reduce_options(), [](Memory const& m) { return m.shard >= Shard::gradients; });
  std::erase_if(all, [&](Candidate const& x) { return !sensible(c, x.memory); });
  return all;
}

/// Prices candidates, those with one program after each other, and drops those whose plan is refused: by itself a
/// choice sets keys that nobody asked for.
void set_prices(Prices& prices, std::vector<Candidate>& all) {
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return program_keys(all[a].memory) < program_keys(all[b].memory);
  });
  std::vector<bool> good(all.size());
  for (auto i : order) good[i] = prices.set(all[i], false);
  std::vector<Candidate> kept;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (good[i]) kept.push_back(std::move(all[i]));
  all = std::move(kept);
}

/// The candidate that needs least, its bytes those of all microbatches: more of them need no less.
Candidate smallest(Prices& prices, std::vector<Candidate>& all) {
  for (;;) {
    auto const least =
        std::min_element(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.bytes < b.bytes; });
    if (!least->few || std::isinf(least->bytes)) return *least;
    if (!prices.set(*least, true)) least->bytes = std::numeric_limits<double>::infinity();
  }
}

}  // namespace

MemoryChoice choose_memory(config::Config const& c) {
  if (c.memory.limit == 0) return {c, ""};
  double const limit = c.memory.limit * gib;
  auto all = candidates(c);
  P3D_REQUIRE(!all.empty(), "of the ways to keep less in memory one is allowed, where the input is");
  Prices prices(c);
  set_prices(prices, all);
  // A candidate that fits with few microbatches is planned with all of them.
  auto const fits = [&](Candidate& x) {
    if (x.bytes <= limit && x.few && !prices.set(x, true)) x.bytes = std::numeric_limits<double>::infinity();
    return x.bytes <= limit;
  };
  // Offloaded activations come last, as they make a rank wait for a disk in every microbatch.
  if (std::none_of(all.begin(), all.end(), fits) && c.memory.free.offload_activations) {
    std::vector<Candidate> more;
    for (auto y : candidates(c)) {
      y.memory.offload_activations = OffloadTo::disk;
      if (!sensible(c, y.memory)) continue;
      y.text += std::string(y.text.empty() ? "" : ", ") + "offload_activations = \"disk\"";
      more.push_back(std::move(y));
    }
    set_prices(prices, more);
    all.insert(all.end(), more.begin(), more.end());
  }
  if (all.empty()) prices.refuse();
  // Equals keep their order, so the first of them discards and divides less.
  std::stable_sort(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.seconds < b.seconds; });
  auto const quickest = all.front().seconds;
  auto const line = [&](Candidate const& x) {
    return fmt::format("{} ({} a rank, {:.2f} of the quickest step)", x.text.empty() ? "the input's keys" : x.text,
                       base::human_bytes(x.bytes), x.seconds / quickest);
  };
  auto const best = std::find_if(all.begin(), all.end(), fits);
  if (best == all.end()) {
    auto const least = smallest(prices, all);
    if (std::isinf(least.bytes)) prices.refuse();
    base::refuse({.expected = fmt::format("a set of keys of [memory] with which a rank needs at most {}",
                                          base::human_bytes(limit)),
                  .found = fmt::format("the smallest: {}", line(least)),
                  .where = "memory.limit",
                  .fix = fmt::format("set memory.limit to {:.3f} or more, raise parallel.tp or parallel.pp, or lower "
                                     "batch.micro",
                                     std::ceil(1000 * least.bytes / gib) / 1000)});
  }
  MemoryChoice choice{c, fmt::format("memory.limit: {}", line(*best))};
  choice.config.memory = best->memory;
  choice.config.memory.free = {};
  int named = 0;
  for (auto it = best + 1; it != all.end() && named < 3; ++it)
    if (fits(*it)) choice.note += fmt::format("{} {}", named++ == 0 ? "; next:" : ";", line(*it));
  return choice;
}

}  // namespace p3d::engine
