// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/context.hpp>

#include <algorithm>

namespace p3d::layout {

TokenSet ContextDivision::place_tokens(int place) const {
  auto const parts = ring();
  switch (order) {
    case config::ContextOrder::striped: {
      TokenSet out;
      out.stride = parts;
      out.runs[0] = {place, seq_len > place ? (seq_len - place + parts - 1) / parts : 0};
      return out;
    }
    case config::ContextOrder::zigzag: {
      auto const early = even_share(seq_len, 2 * parts, place),
                 late = even_share(seq_len, 2 * parts, 2 * parts - 1 - place);
      if (early.end == late.begin) return TokenSet::range(early.begin, late.end);
      return {{{early.begin, early.size()}, {late.begin, late.size()}}, 1};
    }
    case config::ContextOrder::contiguous: break;
  }
  auto const piece = even_share(seq_len, parts, place);
  return TokenSet::range(piece.begin, piece.end);
}

Range ContextDivision::share_of_place(int rank) const {
  return even_share(place_tokens(place(rank)).size(), all_to_all, member(rank));
}

TokenSet ContextDivision::tokens(int rank) const {
  auto const share = share_of_place(rank);
  return place_tokens(place(rank)).slice(share.begin, share.end);
}

std::int64_t ContextDivision::most_tokens() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < cp; ++rank) most = std::max(most, share_of_place(rank).size());
  return most;
}

std::int64_t ContextDivision::most_place_tokens() const {
  std::int64_t most = 0;
  for (int p = 0; p < ring(); ++p) most = std::max(most, place_tokens(p).size());
  return most;
}

ContextDivision ContextDivision::of_length(std::int64_t length) const {
  auto out = *this;
  out.seq_len = length;
  return out;
}

ContextDivision context_division(config::Config const& c) {
  auto const cp = c.parallel.cp;
  ContextDivision d{.seq_len = c.model.seq_len, .cp = cp, .order = c.context.order};
  switch (c.context.exchange) {
    case config::ContextExchange::ring: return d;
    case config::ContextExchange::gather: return d.gather = true, d;
    case config::ContextExchange::all_to_all: return d.all_to_all = cp, d;
    case config::ContextExchange::nested: return d.all_to_all = c.context.all_to_all, d;
    case config::ContextExchange::automatic: break;
  }
  auto const tp = std::int64_t{c.parallel.tp}, dim = c.model.head_dim();
  auto best = d;
  for (int a = 2; a <= cp; ++a) {
    if (cp % a != 0 || c.model.kv_heads / tp % a != 0) continue;
    auto other = d;
    other.all_to_all = a;
    auto const bytes = [&](ContextDivision const& division) {
      auto const t = context_traffic(division, c.model.heads / tp * dim, c.model.kv_heads / tp * dim);
      return t.forward + t.backward;
    };
    if (bytes(other) < bytes(best)) best = other;
  }
  return best;
}

ContextTraffic context_traffic(ContextDivision const& d, std::int64_t q, std::int64_t kv) {
  double const a = d.all_to_all, r = d.ring(), s = static_cast<double>(d.seq_len);
  double const exchange = (a - 1) / a * (s / d.cp) * static_cast<double>(2 * q + 2 * kv);
  double const around = 2 * (r - 1) / r * s * static_cast<double>(kv) / a;
  return {exchange + around, exchange + 2 * around};
}

double context_imbalance(ContextDivision const& d, std::int64_t window, std::vector<std::int64_t> const& first_key) {
  double most = 0, all = 0;
  for (int p = 0; p < d.ring(); ++p) {
    auto const tokens = d.place_tokens(p);
    double work = 0;
    for (std::int64_t i = 0; i < tokens.size(); ++i) {
      auto const query = tokens.at(i);
      auto first = first_key.empty() ? 0 : first_key[static_cast<std::size_t>(query)];
      if (window > 0) first = std::max(first, query + 1 - window);
      work += static_cast<double>(query + 1 - first);
    }
    most = std::max(most, work);
    all += work;
  }
  return most * d.ring() / all;
}

}  // namespace p3d::layout
