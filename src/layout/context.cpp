// SPDX-License-Identifier: Apache-2.0
// The division of a sequence over cp, and the model of its communication. Example with 8 tokens and a ring of 2:
// contiguous gives 0-3 and 4-7, zigzag 0, 1, 6, 7 and 2-5, striped the even and the odd tokens.
#include <p3d/layout/context.hpp>

#include <algorithm>
#include <limits>

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

static ContextBytes context_bytes(config::Config const& c) {
  auto const type = c.run.precision;
  return {static_cast<double>(config::bytes_of(type)),
          static_cast<double>(config::bytes_of(config::is_16bit(type) ? config::Precision::fp32 : type))};
}

/// `d`, in which latents travel where they are fewer bytes.
static ContextDivision with_latents(config::Config const& c, ContextDivision d) {
  d.latents = latents_are_less(d, context_widths(c), context_bytes(c));
  return d;
}

/// The exchange whose layers wait least: a ring, or a nested exchange that the number of heads allows.
static ContextDivision quickest(config::Config const& c, ContextDivision const& ring) {
  MachineRates const rates;
  // Windows repeat with `period`: layer l stands for all layers that lie a multiple of it behind.
  auto const layers = c.model.layers;
  auto const period = std::clamp<std::int64_t>(std::ssize(c.model.window), 1, layers);
  auto best = ring;
  double least = std::numeric_limits<double>::infinity();
  for (int a = 1; a <= ring.cp; ++a) {
    if (ring.cp % a != 0 || c.model.kv_heads / c.parallel.tp % a != 0) continue;
    auto division = ring;
    division.all_to_all = a;
    division = with_latents(c, division);
    double sum = 0;
    for (std::int64_t l = 0; l < period; ++l) {
      auto const wait = context_wait(division, context_work(c, l, rates), rates);
      std::int64_t const alike = (layers - l + period - 1) / period;
      sum += static_cast<double>(alike) * (wait.forward + wait.backward);
    }
    if (sum >= least) continue;
    least = sum;
    best = division;
  }
  return best;
}

AttentionSizes::AttentionSizes(ContextDivision const& d, ContextHeads const& h, std::int64_t micro)
    : samples(micro),
      rows(micro * d.most_tokens()),
      place_tokens(d.most_place_tokens()),
      heads(h.heads),
      columns(h.columns()),
      out_columns(h.out_columns()),
      place_heads(h.heads / d.all_to_all),
      place_kv_heads(h.kv_heads / d.all_to_all),
      head_dim(h.head_dim),
      value_dim(h.values()),
      latent(d.latents ? h.latent : 0),
      ring(d.ring()),
      all_to_all(d.all_to_all),
      gather(d.gather) {}

std::int64_t AttentionSizes::qkv_elements() const {
  return std::max(rows * columns, place_rows() * columns / all_to_all);
}
std::int64_t AttentionSizes::exchanged_elements() const {
  return std::max({qkv_elements(), rows * out_columns, out_elements(), all_to_all * rows * latent});
}
std::int64_t AttentionSizes::sum_elements() const { return place_rows() * place_heads * std::max(head_dim, value_dim); }
std::int64_t AttentionSizes::lse_elements() const { return std::max(rows * heads, place_rows() * place_heads); }

ContextDivision context_division(config::Config const& c) {
  auto const cp = c.parallel.cp;
  ContextDivision d{.seq_len = c.model.seq_len, .cp = cp, .order = c.context.order};
  switch (c.context.exchange) {
    case config::ContextExchange::ring: break;
    case config::ContextExchange::gather: d.gather = true; break;
    case config::ContextExchange::all_to_all: d.all_to_all = cp; break;
    case config::ContextExchange::nested: d.all_to_all = c.context.all_to_all; break;
    case config::ContextExchange::automatic: return cp > 1 ? quickest(c, d) : d;
  }
  return with_latents(c, d);
}

ContextWidths context_widths(config::Config const& c) {
  auto const tp = std::int64_t{c.parallel.tp}, dim = c.model.head_dim(), value_dim = c.model.value_dim();
  auto const heads = c.model.heads / tp, kv_heads = c.model.kv_heads / tp;
  return {.q = heads * dim,
          .k = kv_heads * dim,
          .v = kv_heads * value_dim,
          .out = heads * value_dim,
          .heads = heads,
          .latent = c.model.mla.key_value_latent()};
}

ContextTraffic context_traffic(ContextDivision const& d, ContextWidths const& w) {
  double const a = d.all_to_all, r = d.ring(), s = static_cast<double>(d.seq_len);
  double const rows = (a - 1) / a * (s / d.cp);
  double const outputs = rows * static_cast<double>(w.out), delta = rows * static_cast<double>(w.heads);
  if (d.latents) {
    auto const latent = static_cast<double>(w.latent);
    double const inputs = rows * static_cast<double>(w.q), members = (a - 1) * (s / d.cp) * latent;
    double const around = (r - 1) / r * s * latent;
    return {inputs + members + outputs + around, inputs + 2 * members + outputs + delta + 2 * around, outputs + around,
            delta + around};
  }
  double const inputs = rows * static_cast<double>(w.q + w.k + w.v);
  double const around = (r - 1) / r * s * static_cast<double>(w.k + w.v) / a;
  return {inputs + outputs + around, inputs + outputs + delta + 2 * around, outputs + around, delta + around};
}

bool latents_are_less(ContextDivision d, ContextWidths const& w, ContextBytes const& bytes) {
  if (d.cp == 1 || w.latent == 0) return false;
  auto const sent = [&](bool latents) {
    d.latents = latents;
    auto const t = context_traffic(d, w);
    return bytes.storage * (t.forward + t.backward - t.sums) + bytes.sums * t.sums;
  };
  return sent(true) < sent(false);
}

ContextWork context_work(config::Config const& c, std::int64_t layer, MachineRates const& rates) {
  ContextWork w{.widths = context_widths(c), .samples = static_cast<double>(c.batch.micro)};
  auto const bytes = context_bytes(c);
  w.storage = bytes.storage, w.sums = bytes.sums;
  double const queries = w.samples * static_cast<double>(c.model.seq_len) / c.parallel.cp;
  // Two GEMMs: for every key 2 operations for each number of a query, and 2 for each of an output.
  double const each_key = 2.0 * static_cast<double>(w.widths.q + w.widths.out);
  w.forward = queries * each_key * mean_keys(c.model.seq_len, c.model.window_of(layer)) / rates.flops;
  auto const& mla = c.model.mla;
  auto const heads = c.model.heads / c.parallel.tp;
  auto const columns = static_cast<double>(heads * mla.kv_head_dim());
  w.expansion = 2 * queries * columns * static_cast<double>(mla.kv_lora_rank) / rates.flops;
  return w;
}

ContextWait context_wait(ContextDivision const& d, ContextWork const& w, MachineRates const& rates) {
  double const a = d.all_to_all, r = d.ring(), s = w.samples * static_cast<double>(d.seq_len);
  auto const all_to_all = [&](std::int64_t columns, double bytes) {
    return (a - 1) * (rates.latency + s / d.cp * static_cast<double>(columns) / a * bytes / rates.bandwidth);
  };
  auto const kept = w.widths.k + w.widths.v;
  double const inputs = all_to_all(w.widths.q + (d.latents ? 0 : kept), w.storage),
               outputs = all_to_all(w.widths.out, w.storage);
  double const delta = all_to_all(w.widths.heads, w.sums);
  ContextWait out{inputs + outputs, outputs + delta + inputs, outputs};
  if (d.latents) {
    double const members = all_to_all(w.widths.latent * d.all_to_all, w.storage);
    out.forward += members;
    out.backward += 2 * members;
  }
  if (d.ring() == 1) return out;
  double const block = d.latents ? s / r * static_cast<double>(w.widths.latent) : s / r * static_cast<double>(kept) / a;
  double const keys = rates.latency + block * w.storage / rates.bandwidth;
  double const sums = rates.latency + block * w.sums / rates.bandwidth;
  // The part of the communication that does not fit beside a step of the ring.
  auto const beside = [&](double hops, double step) { return std::max(0.0, hops - step); };
  double const step = w.forward / r;
  double const around = (r - 1) * (d.gather ? keys : beside(keys, step));
  double back = keys + sums;
  if (d.gather)
    back *= r - 1;
  else if (d.ring() > 2)
    back += beside(keys, 2 * step) + (r - 3) * beside(keys + sums, 2 * step) + beside(sums, 2 * step);
  double const expansions = d.latents ? (r - 1) * w.expansion : 0;
  out.forward += around + expansions;
  out.again += around + expansions;
  out.backward += back + 3 * expansions;
  return out;
}

double mean_keys(std::int64_t seq_len, std::int64_t window) {
  auto const most = static_cast<double>(window > 0 ? std::min(window, seq_len) : seq_len);
  // The first `most` queries see 1, 2, ..., most keys, the others `most` keys.
  return most - most * (most - 1) / (2.0 * static_cast<double>(seq_len));
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
