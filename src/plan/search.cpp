// SPDX-License-Identifier: Apache-2.0
// Predicts every layout that the sizes allow, then checks the quickest ones until enough fit. A check costs a thousand
// times as much as a prediction, so a bound of the memory comes before it: state, and the activations of the layers and
// microbatches in flight. Memory is planned for the few microbatches that fill a pipeline; only the layouts that are
// listed at last are planned with all. Example: 8 B parameters in bf16 with AdamW on 8 ranks of 80 GB need 18 bytes a
// parameter, 144 GB, so layouts with tp pp = 1 and whole states are left out without a check.
#include <p3d/plan/search.hpp>

#include "plan/least_memory.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/run_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace p3d::plan {
namespace {

using config::Config;
using config::Recompute;
using config::Shard;

// Layouts that are checked as a run checks them; each takes some milliseconds.
constexpr int most_checked = 2000;
constexpr std::int64_t most_micro = 64;
// The largest number of ranks that an answer names.
constexpr int most_ranks = 1 << 17;

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

/// Schedules that a search tries. The zero-bubble ones are simulated, since no formula knows stages that differ.
enum class Order { one_f_one_b, interleaved, zb_h1, zb_v };
constexpr std::array order_names{"1f1b", "interleaved_1f1b", "zb_h1", "zb_v"};

/// Keys of a pipeline that a search chooses.
struct Pipeline {
  Order order = Order::one_f_one_b;
  int virtual_stages = 0;
  bool vocabulary = false;  ///< pipeline.vocab_parallel
  auto key() const { return std::tuple(order, virtual_stages, vocabulary); }
};

/// A layout as numbers; small, since there may be a million of them.
struct CandidateLayout {
  int tp = 1, pp = 1, cp = 1, ep = 1;
  Pipeline pipeline;
  std::int64_t micro = 1;
  Recompute recompute = Recompute::none;
  Shard shard = Shard::none;
  double seconds = 0;
  bool done = false;     ///< checked, or left out for good
  double simulated = 0;  ///< seconds by simulation that were too many so far, of one that is not done
  using States = std::tuple<int, int, int, int, std::tuple<Order, int, bool>, Shard>;
  States states() const { return {tp, pp, cp, ep, pipeline.key(), shard}; }
  /// The order of the list: the quickest first; among layouts of one time the one that divides more state.
  auto key() const {
    return std::tuple(seconds, tp, pp, cp, ep, pipeline.key(), micro, recompute, -static_cast<int>(shard));
  }
};

/// The machine with as much memory for a rank as memory.limit allows.
config::Cluster within_limit(config::Cluster cluster, Config const& config) {
  double const limit = config.memory.limit * 1024 * 1024 * 1024;
  if (limit > 0) cluster.device.memory = std::min(cluster.device.memory, limit);
  return cluster;
}

class Search {
public:
  Search(Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels,
         SearchOptions const& options)
      : base_(config),
        cluster_(within_limit(cluster, config)),
        kernels_(kernels),
        predictor_(cluster_, kernels),
        options_(options) {}

  SearchResult run() {
    predict_all();
    std::sort(all_.begin(), all_.end(), [](auto const& a, auto const& b) { return a.key() < b.key(); });
    result_.predicted = static_cast<std::int64_t>(all_.size());
    // Layouts whose bubble has a formula first: simulations are spared that cannot be among the quickest any more.
    do
      for (bool simulated : {false, true}) check_all(simulated);
    while (!best_fit_with_all_microbatches());
    if (found_.empty()) {
      find_smallest();
      while (!best_fit_with_all_microbatches()) {
      }
    }
    for (auto at : best()) result_.layouts.push_back(std::move(found_[at].layout));
    return std::move(result_);
  }

private:
  void check_all(bool simulated) {
    for (auto& c : all_) {
      if (c.seconds >= seconds_of_last_) break;
      if (c.done || c.simulated >= seconds_of_last_) continue;
      auto const& config = with(c);
      if (StepPredictor::simulates(config) != simulated) continue;
      double const least = least_.bytes(config);
      if (least > cluster_.device.memory || needs_more_than_a_rejected_one(c, config)) {
        reject("memory");
        c.done = true;
        continue;
      }
      if (behind_the_front(c.seconds, least)) continue;
      if (checked_ == most_checked) {
        result_.complete = false;
        break;
      }
      ++checked_;
      auto const answer = check(config);
      c.done = answer.slow == 0;
      c.simulated = answer.slow;
      if (answer.too_large) too_large_[c.states()].push_back({c.micro, c.recompute});
    }
  }

  /// True on a front for a layout that another one beats in time and memory.
  bool behind_the_front(double seconds, double bytes) const {
    return options_.front && std::any_of(found_.begin(), found_.end(), [&](Found const& f) {
             return f.layout.time.seconds() <= seconds && f.layout.bytes <= bytes;
           });
  }

  /// Seconds of the last layout that is wanted. A simulated one takes more than its bound, by which
  /// candidates are sorted.
  double seconds_of_last() const {
    auto const found = best();
    return found.size() < static_cast<std::size_t>(options_.top) ? std::numeric_limits<double>::infinity()
                                                                 : found_[found.back()].layout.time.seconds();
  }

  /// The layouts found that are wanted, best first, as numbers of them.
  std::vector<std::size_t> best() const {
    std::vector<std::size_t> all(found_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    auto const bytes = [&](std::size_t at) { return found_[at].layout.bytes; };
    std::stable_sort(all.begin(), all.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(found_[a].layout.time.seconds(), bytes(a)) <
             std::pair(found_[b].layout.time.seconds(), bytes(b));
    });
    // On a front each layout needs less memory than all quicker ones.
    double smallest = std::numeric_limits<double>::infinity();
    if (options_.front)
      std::erase_if(all, [&](auto at) { return bytes(at) >= std::exchange(smallest, std::min(smallest, bytes(at))); });
    if (all.size() > static_cast<std::size_t>(options_.top)) all.resize(static_cast<std::size_t>(options_.top));
    return all;
  }

  /// Plans the memory of the best layouts with all their microbatches, which takes the longest of all. Leaves out those
  /// that do not fit, and returns false where that, or their memory, changes which are best.
  bool best_fit_with_all_microbatches() {
    bool same = true;
    std::vector<bool> refused(found_.size());
    for (auto at : best()) {
      auto& [layout, whole] = found_[at];
      if (std::exchange(whole, true)) continue;
      double const before = layout.bytes;
      try {
        layout.bytes = predicted_bytes(layout.config, kernels_);
        refused[at] = !fits(layout.bytes);
      } catch (base::Error const& e) {
        reject(e);
        refused[at] = true;
      }
      same = same && !refused[at] && layout.bytes == before;
    }
    for (auto at = found_.size(); at-- > 0;)
      if (refused[at]) found_.erase(found_.begin() + static_cast<std::ptrdiff_t>(at));
    seconds_of_last_ = seconds_of_last();
    return same;
  }

  /// False for more memory than a rank has, which is counted.
  bool fits(double bytes) {
    if (bytes <= cluster_.device.memory) return true;
    reject("memory");
    if (result_.least_bytes == 0 || bytes < result_.least_bytes) result_.least_bytes = bytes;
    return false;
  }

  bool free(char const* key) const {
    return std::find(options_.fixed.begin(), options_.fixed.end(), key) == options_.fixed.end();
  }

  /// The input with that layout. The object is used again by the next call: an input is large to copy.
  Config const& with(CandidateLayout const& c) {
    Config& out = scratch_;
    out.parallel.tp = c.tp;
    out.parallel.pp = c.pp;
    out.parallel.cp = c.cp;
    out.parallel.ep = c.ep;
    out.parallel.dp = options_.ranks / (c.tp * c.pp * c.cp);
    // A short order may leave out an axis of one rank, which has more now.
    out.parallel.order =
        c.cp > 1 && base_.parallel.order.find("cp") == std::string::npos ? whole_order_ : base_.parallel.order;
    if (free("parallel.sequence")) out.parallel.sequence = c.tp > 1;
    out.batch.micro = c.micro;
    out.batch.microbatches = out.batch.global / (out.parallel.dp * c.micro);
    if (free("pipeline.schedule")) out.pipeline.schedule = order_names[static_cast<std::size_t>(c.pipeline.order)];
    out.pipeline.virtual_stages = c.pipeline.virtual_stages;
    out.pipeline.vocab_parallel = c.pipeline.vocabulary;
    out.memory.recompute = c.recompute;
    out.memory.shard = c.shard;
    return out;
  }

  std::vector<std::int64_t> sizes(char const* key, std::int64_t own, std::int64_t of, std::int64_t most) const {
    if (free(key)) return divisors(of, most);
    return of % own == 0 ? std::vector{own} : std::vector<std::int64_t>{};
  }

  /// Calls visit(tp, pp, cp, ep, dp, micro) for the meshes of so many ranks that divide the model and the batch, until
  /// it returns true. Returns whether it did.
  template <class Visit>
  bool visit_meshes(std::int64_t ranks, Visit const& visit) const {
    auto const& m = base_.model;
    auto const& p = base_.parallel;
    auto const batch = base_.batch.global;
    for (auto tp : sizes("parallel.tp", p.tp, ranks, m.heads)) {
      if (m.heads % tp != 0 || m.kv_heads % tp != 0) continue;
      for (auto pp : sizes("parallel.pp", p.pp, ranks / tp, m.layers)) {
        if (base_.pipeline.layer_split == config::LayerSplit::list &&
            base_.pipeline.layers_per_stage.size() % static_cast<std::size_t>(pp) != 0)
          continue;
        for (auto cp : sizes("parallel.cp", p.cp, ranks / tp / pp, free("parallel.cp") ? m.seq_len / 2048 + 1 : p.cp)) {
          auto const dp = ranks / tp / pp / cp;
          if (batch % dp != 0 || (!free("parallel.dp") && dp != p.dp) || 2 * cp > m.seq_len) continue;
          for (auto micro : sizes("batch.micro", base_.batch.micro, batch / dp, most_micro))
            for (auto ep : sizes("parallel.ep", p.ep, m.moe.on() ? m.moe.experts : 1, m.moe.experts + 1)) {
              if (tp * cp * dp % (ep * p.etp) != 0) continue;
              if (visit(tp, pp, cp, ep, dp, micro)) return true;
            }
        }
      }
    }
    return false;
  }

  void predict_all() {
    auto const& m = base_.model;
    std::int64_t const ranks = options_.ranks;
    std::vector<Recompute> recompute{base_.memory.recompute};
    if (free("memory.recompute") || base_.memory.recompute == Recompute::automatic)
      recompute = {Recompute::none, Recompute::full};
    auto const batch = base_.batch.global;
    visit_meshes(ranks, [&](auto tp, auto pp, auto cp, auto ep, auto dp, auto micro) {
      for (auto r : recompute)
        for (auto const& line : pipelines(pp, batch / dp / micro)) add_shards(tp, pp, cp, ep, dp, micro, line, r);
      return false;
    });
    if (all_.empty())
      base::refuse(fmt::format("a number of ranks and a batch that some layout divides (batch.global = {}, {} layers, "
                               "{} heads)",
                               batch, m.layers, m.heads),
                   fmt::format("{} ranks", ranks), "--ranks", nearest_ranks());
  }

  /// The advice where no layout divides the ranks: the next numbers below and above that one divides.
  std::string nearest_ranks() const {
    auto const divides = [&](std::int64_t ranks) { return visit_meshes(ranks, [](auto...) { return true; }); };
    std::int64_t const wanted = options_.ranks;
    std::int64_t below = wanted - 1, above = wanted + 1;
    while (below > 0 && !divides(below)) --below;
    while (above <= 2 * wanted && !divides(above)) ++above;
    if (above > 2 * wanted) above = 0;
    if (below == 0 && above == 0) return "choose another batch.global, or keep fewer keys as they are (--fix)";
    auto const both =
        below > 0 && above > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", std::max(below, above));
    return fmt::format("choose {} ranks, or another batch.global", both);
  }

  std::vector<Pipeline> pipelines(std::int64_t pp, std::int64_t microbatches) const {
    std::vector<Pipeline> out;
    bool const vocabulary = base_.pipeline.vocab_parallel, either = free("pipeline.vocab_parallel") && pp > 1;
    // Blocks of multi-token prediction read it whole.
    bool const divides = !(base_.model.mtp.on() && pp > 1) && base_.parallel.embedding == config::Embedding::sharded;
    auto const add = [&](Order order, int virtual_stages) {
      Pipeline one{order, virtual_stages};
      if (either || !vocabulary) out.push_back(one);
      one.vocabulary = true;
      if ((either || vocabulary) && divides) out.push_back(one);
    };
    if (!free("pipeline.schedule") || !free("pipeline.virtual_stages")) {
      // with() leaves a schedule that is fixed. Of those that it may choose, one has stages in any number.
      auto const stages = base_.pipeline.virtual_stages;
      add(free("pipeline.schedule") && stages > 1 ? Order::interleaved : Order::one_f_one_b, stages);
      return out;
    }
    add(Order::one_f_one_b, 0);
    for (int v : {2, 3, 4, 5, 6, 8})
      if (pp > 1 && base_.model.layers % (pp * v) == 0 && microbatches % pp == 0) add(Order::interleaved, v);
    if (pp > 1) add(Order::zb_h1, 0);
    if (pp > 1 && base_.model.layers >= 2 * pp) add(Order::zb_v, 0);
    return out;
  }

  void add_shards(std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t ep, std::int64_t dp,
                  std::int64_t micro, Pipeline const& pipeline, Recompute r) {
    std::vector<Shard> shards{base_.memory.shard};
    if (free("memory.shard")) shards = {Shard::none};
    if (free("memory.shard") && dp > 1) shards = {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters};
    for (auto shard : shards) {
      CandidateLayout c{.tp = static_cast<int>(tp),
                        .pp = static_cast<int>(pp),
                        .cp = static_cast<int>(cp),
                        .ep = static_cast<int>(ep),
                        .pipeline = pipeline,
                        .micro = micro,
                        .recompute = r,
                        .shard = shard};
      c.seconds = predictor_.least(with(c));
      all_.push_back(c);
    }
  }

  void reject(std::string const& reason) { ++result_.rejected[reason]; }
  void reject(base::Error const& e) {
    reject("plan of " + (e.text().where.empty() ? std::string("the run") : e.text().where));
  }

  /// Plans the memory of the layouts whose bounds are smallest, and keeps the least. One that fits is the answer where
  /// the quicker ones were too many to check.
  void find_smallest() {
    std::vector<std::pair<double, std::size_t>> bounds;
    for (std::size_t i = 0; i < all_.size(); ++i) bounds.emplace_back(least_.bytes(with(all_[i])), i);
    auto const few = std::min<std::size_t>(bounds.size(), 40);
    std::partial_sort(bounds.begin(), bounds.begin() + static_cast<std::ptrdiff_t>(few), bounds.end());
    for (std::size_t i = 0; i < few; ++i) check(with(all_[bounds[i].second]));
  }

  /// True where a layout that differs in batch.micro and memory.recompute alone, and needs less for both, was too
  /// large. Both have a pipeline full of microbatches: of fewer, larger ones not so many may be in flight. The actions
  /// of a divided vocabulary are ordered by their times, so that recomputation may need more there; of batch.micro this
  /// is a rule of thumb for it.
  bool needs_more_than_a_rejected_one(CandidateLayout const& c, Config const& config) const {
    if (config.batch.microbatches < 2 * std::int64_t{c.pp}) return false;
    auto const found = too_large_.find(c.states());
    return found != too_large_.end() && std::any_of(found->second.begin(), found->second.end(), [&](auto const& small) {
             if (config.divides_vocabulary() && small.second != c.recompute) return false;
             return small.first <= c.micro && small.second >= c.recompute;
           });
  }

  struct Answer {
    bool too_large = false;
    double slow = 0;  ///< seconds of a layout whose bound was quicker than the last one that is wanted, while it is not
  };
  /// Parses the layout as an input and plans its memory, for the few microbatches that fill the pipeline: these need as
  /// much as more of them, as a rule, and take less time to plan.
  Answer check(Config const& wanted) {
    auto overrides = layout_overrides(wanted);
    auto parsed = config::parse_text(base_toml_, "layout", "/", overrides, options_.ranks);
    if (!parsed.config) {
      reject("rule of " + parsed.errors.front().key);
      return {};
    }
    try {
      auto const time = predictor_.predict(*parsed.config);
      if (time.seconds() >= seconds_of_last_) return {.slow = time.seconds()};
      auto const few = with_few_microbatches(*parsed.config);
      double const bytes = predicted_bytes(few, kernels_);
      if (!fits(bytes)) return {.too_large = true};
      bool const whole = few.batch.microbatches == parsed.config->batch.microbatches;
      found_.push_back({{std::move(*parsed.config), time, bytes}, whole});
      seconds_of_last_ = seconds_of_last();
    } catch (base::Error const& e) {
      reject(e);
    }
    return {};
  }

  /// A layout that fits; `whole`: with all its microbatches, else with few of them.
  struct Found {
    PlannedLayout layout;
    bool whole = false;
  };

  Config const& base_;
  config::Cluster const cluster_;
  KernelGeneration const& kernels_;
  StepPredictor predictor_;
  LeastMemory least_{predictor_, kernels_};
  std::string const base_toml_ = config::canonical_toml(base_);
  Config scratch_ = base_;
  std::string const whole_order_ = Config{}.parallel.order;
  SearchOptions const& options_;
  std::vector<CandidateLayout> all_;
  /// batch.micro and memory.recompute of layouts that were too large, by the rest of the layout.
  std::map<CandidateLayout::States, std::vector<std::pair<std::int64_t, Recompute>>> too_large_;
  std::vector<Found> found_;
  int checked_ = 0;
  double seconds_of_last_ = std::numeric_limits<double>::infinity();  ///< seconds_of_last() of the layouts so far
  SearchResult result_;
};

/// The quickest layout on the least of 2, 4, 8, ... times as many ranks on which one fits; nothing where none does.
std::optional<PlannedLayout> fits_more_ranks(Config const& config, config::Cluster const& cluster,
                                             KernelGeneration const& kernels, SearchOptions options) {
  options.top = 1;
  auto const size = cluster.levels.empty() ? 0 : cluster.levels.back().size;
  auto const most = size > 0 ? std::min<std::int64_t>(most_ranks, size) : most_ranks;
  for (options.ranks *= 2; options.ranks <= most; options.ranks *= 2) try {
      auto result = Search(config, cluster, kernels, options).run();
      if (!result.layouts.empty()) return std::move(result.layouts.front());
    } catch (base::Error const&) {
      // No layout of so many ranks divides the batch; more may.
    }
  return std::nullopt;
}

/// Refuses layouts of which most break one rule, or cannot be planned for one key: what they need is another value of
/// it. The reasons are those of Search::reject().
void refuse_broken_rules(SearchResult const& result, std::string const& expected) {
  auto const& all = result.rejected;
  auto const most =
      std::max_element(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.second < b.second; });
  if (most == all.end() || most->first == "memory") return;
  auto const key = most->first.substr(most->first.find(" of ") + 4);
  base::refuse(expected, fmt::format("none of {} layouts: the {} refuses most of them", result.predicted, most->first),
               "--ranks", "change " + key);
}

}  // namespace

std::string layout_of(Config const& c) {
  auto const& p = c.parallel;
  std::string text = fmt::format("tp {}, pp {}, dp {}", p.tp, p.pp, p.dp);
  if (p.cp > 1) text += fmt::format(", cp {}", p.cp);
  if (p.ep > 1) text += fmt::format(", ep {}", p.ep);
  text += fmt::format(", micro {}", c.batch.micro);
  if (c.pipeline.schedule == "zb_h1" || c.pipeline.schedule == "zb_v") text += ", " + c.pipeline.schedule;
  if (c.pipeline.virtual_stages > 1) text += fmt::format(", {} chunks", c.pipeline.virtual_stages);
  if (c.divides_vocabulary()) text += ", vocabulary divided";
  if (c.memory.recompute != Recompute::none)
    text += fmt::format(", recompute {}",
                        c.memory.recompute == Recompute::list ? "some" : base::to_string(c.memory.recompute));
  if (c.memory.shard != Shard::none) text += fmt::format(", shard {}", base::to_string(c.memory.shard));
  return text;
}

std::vector<std::string> layout_overrides(Config const& c) {
  auto const& p = c.parallel;
  std::vector<std::string> out{fmt::format("parallel.tp={}", p.tp),
                               fmt::format("parallel.pp={}", p.pp),
                               fmt::format("parallel.cp={}", p.cp),
                               fmt::format("parallel.ep={}", p.ep),
                               fmt::format("parallel.dp={}", p.dp),
                               fmt::format("parallel.order={}", p.order),
                               fmt::format("parallel.sequence={}", p.sequence),
                               fmt::format("batch.micro={}", c.batch.micro),
                               fmt::format("batch.microbatches={}", c.batch.microbatches),
                               fmt::format("pipeline.schedule={}", c.pipeline.schedule),
                               fmt::format("pipeline.virtual_stages={}", c.pipeline.virtual_stages),
                               fmt::format("pipeline.vocab_parallel={}", c.pipeline.vocab_parallel)};
  if (c.memory.recompute != Recompute::list)
    out.push_back(fmt::format("memory.recompute={}", base::to_string(c.memory.recompute)));
  out.push_back(fmt::format("memory.shard={}", base::to_string(c.memory.shard)));
  return out;
}

SearchResult require_layouts(Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels,
                             SearchOptions const& options) {
  cluster.require_room(options.ranks);
  auto result = search_layouts(config, cluster, kernels, options);
  if (!result.layouts.empty()) return result;
  auto const expected = fmt::format("a layout that fits {} ranks of {} ({} each)", options.ranks, cluster.name,
                                    base::human_bytes(within_limit(cluster, config).device.memory));
  if (result.least_bytes == 0) refuse_broken_rules(result, expected);
  auto const more = fits_more_ranks(config, cluster, kernels, options);
  base::refuse(
      expected,
      fmt::format("none of {} layouts{}", result.predicted,
                  result.least_bytes > 0 ? ": the smallest needs " + base::human_bytes(result.least_bytes) : ""),
      "--ranks",
      more ? fmt::format("take {} ranks: {}", more->config.num_ranks(), layout_of(more->config))
           : "take a smaller model, or free the keys of the layout that are fixed: more ranks do not help");
}

SearchResult search_layouts(Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels,
                            SearchOptions const& options) {
  return Search(config, cluster, kernels, options).run();
}

}  // namespace p3d::plan
