// SPDX-License-Identifier: Apache-2.0
// Predicts every layout that the sizes allow, then checks the quickest ones until enough fit. A check costs a thousand
// times as much as a prediction, so a bound of the memory comes before it: state, and six numbers of each token and
// layer in flight, that no layout avoids. Example: 8 B parameters in bf16 with AdamW on 8 ranks of 80 GB need 18 bytes
// a parameter, 144 GB, so layouts with tp pp = 1 and whole states are left out without a check.
#include <p3d/plan/search.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/run_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace p3d::plan {
namespace {

using config::Config;
using config::Recompute;
using config::Shard;

// Layouts that are checked as a run checks them; each takes some milliseconds.
constexpr int most_checked = 400;
constexpr std::int64_t most_micro = 64;

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

/// A layout as numbers; small, since there may be a million of them.
struct Candidate {
  int tp = 1, pp = 1, cp = 1, ep = 1, virtual_stages = 0;
  std::int64_t micro = 1;
  Recompute recompute = Recompute::none;
  Shard shard = Shard::none;
  double seconds = 0;
  auto key() const { return std::tuple(seconds, tp, pp, cp, ep, virtual_stages, micro, recompute, shard); }
};

class Search {
public:
  Search(Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels,
         SearchOptions const& options)
      : base_(config), cluster_(cluster), kernels_(kernels), options_(options) {}

  SearchResult run() {
    predict_all();
    std::sort(all_.begin(), all_.end(), [](auto const& a, auto const& b) { return a.key() < b.key(); });
    result_.predicted = static_cast<std::int64_t>(all_.size());
    int checked = 0;
    for (auto const& c : all_) {
      if (static_cast<int>(result_.layouts.size()) == options_.top || checked == most_checked) break;
      auto const config = with(c);
      double const least = least_bytes(config);
      if (least > cluster_.device.memory) {
        reject("memory", least);
        continue;
      }
      ++checked;
      check(config);
    }
    return std::move(result_);
  }

private:
  bool free(char const* key) const {
    return std::find(options_.fixed.begin(), options_.fixed.end(), key) == options_.fixed.end();
  }

  Config with(Candidate const& c) const {
    Config out = base_;
    out.parallel.tp = c.tp;
    out.parallel.pp = c.pp;
    out.parallel.cp = c.cp;
    out.parallel.ep = c.ep;
    out.parallel.dp = options_.ranks / (c.tp * c.pp * c.cp);
    // A short order may leave out an axis of one rank, which has more now.
    if (c.cp > 1 && out.parallel.order.find("cp") == std::string::npos) out.parallel.order = Config{}.parallel.order;
    if (free("parallel.sequence")) out.parallel.sequence = c.tp > 1;
    out.batch.micro = c.micro;
    out.batch.microbatches = out.batch.global / (out.parallel.dp * c.micro);
    if (free("pipeline.schedule")) out.pipeline.schedule = c.virtual_stages > 1 ? "interleaved_1f1b" : "1f1b";
    out.pipeline.virtual_stages = c.virtual_stages;
    out.memory.recompute = c.recompute;
    out.memory.shard = c.shard;
    return out;
  }

  std::vector<std::int64_t> sizes(char const* key, std::int64_t own, std::int64_t of, std::int64_t most) const {
    if (free(key)) return divisors(of, most);
    return of % own == 0 ? std::vector{own} : std::vector<std::int64_t>{};
  }

  void predict_all() {
    auto const& m = base_.model;
    auto const& p = base_.parallel;
    std::int64_t const ranks = options_.ranks;
    std::vector<Recompute> recompute{base_.memory.recompute};
    if (free("memory.recompute")) recompute = {Recompute::none, Recompute::full};
    auto const batch = base_.batch.global;
    for (auto tp : sizes("parallel.tp", p.tp, ranks, m.heads)) {
      if (m.heads % tp != 0 || m.kv_heads % tp != 0 || (tp > 1 && m.seq_len % tp != 0)) continue;
      for (auto pp : sizes("parallel.pp", p.pp, ranks / tp, m.layers))
        for (auto cp : sizes("parallel.cp", p.cp, ranks / tp / pp, free("parallel.cp") ? m.seq_len / 2048 + 1 : p.cp)) {
          auto const dp = ranks / tp / pp / cp;
          if (batch % dp != 0 || (!free("parallel.dp") && dp != p.dp) || (cp > 1 && m.seq_len % (2 * cp * tp) != 0))
            continue;
          for (auto micro : sizes("batch.micro", base_.batch.micro, batch / dp, most_micro))
            for (auto ep : sizes("parallel.ep", p.ep, m.moe.on() ? m.moe.experts : 1, m.moe.experts + 1)) {
              if (tp * cp * dp % (ep * p.etp) != 0) continue;
              for (auto r : recompute)
                for (auto v : chunks(pp, batch / dp / micro)) add_shards(tp, pp, cp, ep, dp, micro, v, r);
            }
        }
    }
    if (all_.empty())
      base::refuse(fmt::format("a number of ranks and a batch that some layout divides (batch.global = {}, {} layers, "
                               "{} heads)",
                               batch, m.layers, m.heads),
                   fmt::format("{} ranks", ranks), "--ranks",
                   fmt::format("choose a divisor or a multiple of {}, or another batch.global",
                               std::gcd(ranks, batch * m.heads * m.layers)));
  }

  std::vector<int> chunks(std::int64_t pp, std::int64_t microbatches) const {
    if (!free("pipeline.schedule") || !free("pipeline.virtual_stages")) return {base_.pipeline.virtual_stages};
    std::vector<int> out{0};
    for (int v : {2, 3, 4, 5, 6, 8})
      if (pp > 1 && base_.model.layers % (pp * v) == 0 && microbatches % pp == 0) out.push_back(v);
    return out;
  }

  void add_shards(std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t ep, std::int64_t dp,
                  std::int64_t micro, int v, Recompute r) {
    std::vector<Shard> shards{base_.memory.shard};
    if (free("memory.shard")) shards = {Shard::none};
    if (free("memory.shard") && dp > 1) shards = {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters};
    for (auto shard : shards) {
      Candidate c{.tp = static_cast<int>(tp),
                  .pp = static_cast<int>(pp),
                  .cp = static_cast<int>(cp),
                  .ep = static_cast<int>(ep),
                  .virtual_stages = v,
                  .micro = micro,
                  .recompute = r,
                  .shard = shard};
      c.seconds = predict_step(with(c), cluster_, kernels_).seconds();
      all_.push_back(c);
    }
  }

  /// Bytes that a rank needs at least: its state, and of each layer and microbatch in flight what no layout avoids.
  double least_bytes(Config const& c) const {
    auto const types = type_bytes(c);
    auto const& m = c.model;
    auto const& p = c.parallel;
    double const replicas = static_cast<double>(p.dp) * p.cp;
    double weights = static_cast<double>(m.vocab_size * m.hidden) * (m.tied_embeddings || p.pp > 1 ? 1 : 2);
    for (std::int64_t l = 0; l < m.layers / p.pp; ++l) {
      weights += static_cast<double>(weights_of_layer(c, l));
      if (m.has_experts(l))
        weights += static_cast<double>(m.hidden * m.moe.ffn * 2) *
                   (static_cast<double>(m.moe.experts) / p.ep * p.tp / p.etp - static_cast<double>(m.moe.top_k));
    }
    weights /= p.tp;
    auto const part = [&](Shard from) { return c.memory.shard >= from && p.dp > 1 ? replicas : 1; };
    bool const master = config::is_16bit(c.run.precision);
    double const state = weights * (static_cast<double>(types.storage) / part(Shard::parameters) +
                                    static_cast<double>(types.gradient) / part(Shard::gradients) +
                                    static_cast<double>((master ? 3 : 2) * types.master) / part(Shard::optimizer));
    double const tokens = static_cast<double>(c.batch.micro * m.seq_len) / p.cp;
    double const numbers = (c.memory.recompute == Recompute::full ? 1 : 6) * static_cast<double>(m.hidden);
    double const flying = static_cast<double>(std::min<std::int64_t>(p.pp, c.batch.microbatches));
    double const layers = std::ceil(static_cast<double>(m.layers) / p.pp);
    return state + tokens * numbers * flying * layers * static_cast<double>(types.storage) / p.tp;
  }

  void reject(std::string const& reason, double bytes) {
    ++result_.rejected[reason];
    if (bytes > 0 && (result_.least_bytes == 0 || bytes < result_.least_bytes)) result_.least_bytes = bytes;
  }

  /// Parses the layout as an input and plans its memory.
  void check(Config const& wanted) {
    auto overrides = layout_overrides(wanted);
    auto parsed = config::parse_text(config::canonical_toml(base_), "layout", "/", overrides, options_.ranks);
    if (!parsed.config) return reject("rule of " + parsed.errors.front().key, 0);
    try {
      double const bytes = predicted_bytes(*parsed.config, cluster_);
      if (bytes > cluster_.device.memory) return reject("memory", bytes);
      result_.layouts.push_back({std::move(*parsed.config), {}, bytes});
      auto& layout = result_.layouts.back();
      layout.time = predict_step(layout.config, cluster_, kernels_);
    } catch (base::Error const& e) {
      reject("plan of " + (e.text().where.empty() ? std::string("the run") : e.text().where), 0);
    }
  }

  Config const& base_;
  config::Cluster const& cluster_;
  KernelGeneration const& kernels_;
  SearchOptions const& options_;
  std::vector<Candidate> all_;
  SearchResult result_;
};

}  // namespace

std::vector<std::string> const& search_keys() {
  static std::vector<std::string> const keys{"parallel.tp",      "parallel.pp",       "parallel.cp",
                                             "parallel.ep",      "parallel.dp",       "parallel.sequence",
                                             "batch.micro",      "pipeline.schedule", "pipeline.virtual_stages",
                                             "memory.recompute", "memory.shard"};
  return keys;
}

std::string layout_of(Config const& c) {
  auto const& p = c.parallel;
  std::string text = fmt::format("tp {}, pp {}, dp {}", p.tp, p.pp, p.dp);
  if (p.cp > 1) text += fmt::format(", cp {}", p.cp);
  if (p.ep > 1) text += fmt::format(", ep {}", p.ep);
  text += fmt::format(", micro {}", c.batch.micro);
  if (c.pipeline.virtual_stages > 1) text += fmt::format(", {} chunks", c.pipeline.virtual_stages);
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
                               fmt::format("pipeline.virtual_stages={}", c.pipeline.virtual_stages)};
  if (c.memory.recompute != Recompute::list)
    out.push_back(fmt::format("memory.recompute={}", base::to_string(c.memory.recompute)));
  out.push_back(fmt::format("memory.shard={}", base::to_string(c.memory.shard)));
  return out;
}

SearchResult search_layouts(Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels,
                            SearchOptions const& options) {
  return Search(config, cluster, kernels, options).run();
}

}  // namespace p3d::plan
