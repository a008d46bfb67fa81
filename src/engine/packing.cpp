// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/packing.hpp>

#include <p3d/base/text.hpp>
#include <p3d/data/balance.hpp>
#include <p3d/layout/context.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace p3d::engine {

namespace {

/// Of the layers, a sum over their windows.
std::int64_t work_of(config::Config const& c, std::span<int const> documents) {
  if (c.model.window.empty()) return data::document_work(documents);
  std::int64_t sum = 0;
  for (std::int64_t l = 0; l < c.model.layers; ++l) sum += data::document_work(documents, c.model.window_of(l));
  return sum;
}

double most_over_mean(std::vector<double> const& parts) {
  double const all = std::accumulate(parts.begin(), parts.end(), 0.0);
  return *std::max_element(parts.begin(), parts.end()) * static_cast<double>(parts.size()) / all;
}

}  // namespace

DealtBatch deal_batch(config::Config const& c, data::Sampler const& sampler, std::int64_t step) {
  auto const seq = static_cast<std::size_t>(c.model.seq_len);
  auto const division = layout::context_division(c);
  std::vector<int> inputs(seq), targets(seq), documents(seq);
  std::vector<std::int64_t> work(static_cast<std::size_t>(c.batch.global / c.batch.micro));
  std::vector<double> places(static_cast<std::size_t>(division.ring()), 0.0);
  DealtBatch out;
  out.step = step;
  for (std::int64_t i = 0; i < c.batch.global; ++i) {
    sampler.train(data::global_sample(step, i, c.batch.global), inputs, targets, documents);
    work[static_cast<std::size_t>(i / c.batch.micro)] += work_of(c, documents);
    for (std::size_t k = 0; k < seq; ++k) out.balance.documents += documents[k] == static_cast<int>(k) ? 1 : 0;
    if (places.size() == 1) continue;
    for (std::size_t p = 0; p < places.size(); ++p) {
      auto const tokens = division.place_tokens(static_cast<int>(p));
      for (std::int64_t k = 0; k < tokens.size(); ++k) {
        auto const token = tokens.at(k);
        places[p] += static_cast<double>(token + 1 - documents[static_cast<std::size_t>(token)]);
      }
    }
  }
  auto const replicas = c.parallel.dp;
  out.order = data::balance_microbatches(work, replicas);
  std::vector<std::int64_t> in_order(out.order.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  auto const of_replicas = [&](std::vector<std::int64_t> const& order) {
    std::vector<double> sums(static_cast<std::size_t>(replicas), 0.0);
    auto const each = order.size() / sums.size();
    for (std::size_t i = 0; i < order.size(); ++i)
      sums[i / each] += static_cast<double>(work[static_cast<std::size_t>(order[i])]);
    return most_over_mean(sums);
  };
  out.balance.replicas_as_read = of_replicas(in_order);
  out.balance.replicas = of_replicas(out.order);
  out.balance.context = most_over_mean(places);
  return out;
}

std::string describe(PackingBalance const& b, config::Config const& c) {
  auto text = fmt::format("Packing: {} in the first global batch", base::counted(b.documents, "document or part"));
  if (c.parallel.dp > 1)
    text += fmt::format("; attention's work of a replica at most {:.2f} of the mean ({:.2f} undealt)", b.replicas,
                        b.replicas_as_read);
  if (c.parallel.cp > 1) text += fmt::format("; over cp {:.2f}", b.context);
  return text;
}

}  // namespace p3d::engine
