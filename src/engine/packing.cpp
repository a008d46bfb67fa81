// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/packing.hpp>

#include <p3d/base/text.hpp>
#include <p3d/data/balance.hpp>
#include <p3d/kernels/fused_attention.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/model_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace p3d::engine {

namespace {

/// The attention's work for a sample: a sum over the windows of all layers, those of multi-token prediction included.
double work_of(config::Config const& c, std::span<int const> documents) {
  if (c.model.window.empty()) return static_cast<double>(data::document_work(documents));
  double sum = 0.0;
  for (std::int64_t l = 0; l < c.model.all_layers(); ++l)
    sum += static_cast<double>(data::document_work(documents, c.model.window_of(l)));
  return sum;
}

double most_over_mean(std::vector<double> const& parts) {
  double const all = std::accumulate(parts.begin(), parts.end(), 0.0);
  return *std::max_element(parts.begin(), parts.end()) * static_cast<double>(parts.size()) / all;
}

/// The lengths of one global batch, before it is dealt.
struct Read {
  std::vector<double> work;    ///< FLOPs of each microbatch, which exceed 64-bit integers
  std::vector<double> places;  ///< share of each place of a ring
};

Read read_lengths(config::Config const& c, data::Sampler const& sampler, std::int64_t step, PackingBalance& balance) {
  Read out{{}, {1.0}};
  auto shorter = c;
  for (std::int64_t first = 0; first < c.batch.global; first += c.batch.micro) {
    std::int64_t longest = 1, tokens = 0;
    for (auto i = first; i < first + c.batch.micro; ++i) {
      auto const length = sampler.length(data::global_sample(step, i, c.batch.global));
      longest = std::max(longest, length);
      tokens += length;
    }
    shorter.model.seq_len = padded_length(c, longest);
    auto const run = c.batch.micro * shorter.model.seq_len;
    out.work.push_back(plan::flops_per_token(shorter) * static_cast<double>(run));
    balance.tokens += tokens;
    balance.padding += run - tokens;
  }
  balance.documents = c.batch.global;
  return out;
}

Read read_documents(config::Config const& c, data::Sampler const& sampler, std::int64_t step, PackingBalance& balance) {
  auto const seq = static_cast<std::size_t>(c.model.seq_len);
  auto const division = layout::context_division(c);
  std::vector<int> inputs(seq), targets(seq), documents(seq);
  Read out{std::vector<double>(static_cast<std::size_t>(c.batch.global / c.batch.micro)),
           std::vector<double>(static_cast<std::size_t>(division.ring()), 0.0)};
  auto& [work, places] = out;
  balance.tokens = c.batch.global * c.model.seq_len;
  for (std::int64_t i = 0; i < c.batch.global; ++i) {
    sampler.train(data::global_sample(step, i, c.batch.global), inputs, targets, documents);
    work[static_cast<std::size_t>(i / c.batch.micro)] += work_of(c, documents);
    for (std::size_t k = 0; k < seq; ++k) balance.documents += documents[k] == static_cast<int>(k) ? 1 : 0;
    if (places.size() == 1) continue;
    for (std::size_t p = 0; p < places.size(); ++p) {
      auto const tokens = division.place_tokens(static_cast<int>(p));
      for (std::int64_t k = 0; k < tokens.size(); ++k) {
        auto const token = tokens.at(k);
        places[p] += static_cast<double>(token + 1 - documents[static_cast<std::size_t>(token)]);
      }
    }
  }
  return out;
}

}  // namespace

std::int64_t length_step() { return kernels::uses_fused_attention() ? kernels::fused_length_step : 1; }

std::int64_t padded_length(config::Config const& c, std::int64_t longest, std::int64_t step) {
  auto const& p = c.parallel;
  auto const parts = std::lcm(std::int64_t{p.cp > 1 ? 2 * p.cp : 1} * (p.sequence ? p.tp : 1), step);
  return std::min(c.model.seq_len, (longest + parts - 1) / parts * parts);
}

DealtBatch deal_batch(config::Config const& c, data::Sampler const& sampler, std::int64_t step) {
  DealtBatch out;
  out.step = step;
  auto const [work, places] =
      sampler.varies() ? read_lengths(c, sampler, step, out.balance) : read_documents(c, sampler, step, out.balance);
  auto const replicas = c.parallel.dp;
  std::vector<std::int64_t> in_order(work.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  // The samples of a worker are the same on whatever replica it is.
  out.order = c.compresses() ? in_order : data::balance_microbatches(work, replicas);
  auto const of_replicas = [&, &work = work](std::vector<std::int64_t> const& order) {
    std::vector<double> sums(static_cast<std::size_t>(replicas), 0.0);
    auto const each = order.size() / sums.size();
    for (std::size_t i = 0; i < order.size(); ++i) sums[i / each] += work[static_cast<std::size_t>(order[i])];
    return most_over_mean(sums);
  };
  out.balance.replicas_as_read = of_replicas(in_order);
  out.balance.replicas = of_replicas(out.order);
  out.balance.context = most_over_mean(places);
  return out;
}

std::string describe(PackingBalance const& b, config::Config const& c) {
  auto text =
      c.batch.variable
          ? fmt::format("Variable lengths: {} in the first global batch, and {:.1f} % padding",
                        base::counted(b.tokens, "token"),
                        100.0 * static_cast<double>(b.padding) / static_cast<double>(b.tokens + b.padding))
          : fmt::format("Packing: {} in the first global batch", base::counted(b.documents, "document or part"));
  if (c.parallel.dp > 1)
    text += fmt::format("; {} of a replica at most {:.2f} of the mean ({:.2f} undealt)",
                        c.batch.variable ? "work" : "attention's work", b.replicas, b.replicas_as_read);
  if (c.parallel.cp > 1 && !c.batch.variable) text += fmt::format("; over cp {:.2f}", b.context);
  return text;
}

}  // namespace p3d::engine
