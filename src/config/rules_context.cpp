// SPDX-License-Identifier: Apache-2.0
// The rules of context parallelism: sizes of all-to-alls and rings, and enough tokens for every rank.

#include "config/divide.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace p3d::config {

namespace {

/// The largest number of ranks up to `size` that an all-to-all inside cp can have.
int fitting(Check const& c, int size) {
  auto const cp = c.config.parallel.cp;
  auto both = std::int64_t{cp};
  if (c.known({"model.kv_heads", "parallel.tp"}) && c.config.model.kv_heads % c.config.parallel.tp == 0)
    both = std::gcd(both, c.config.model.kv_heads / c.config.parallel.tp);
  while (both % size != 0) --size;
  return size;
}

/// A value of context.exchange that fits, with an all-to-all of about `size` ranks.
std::string pair_text(Check const& c, int size) {
  auto const a = fitting(c, size);
  return fmt::format("[{}, {}]", a, c.config.parallel.cp / a);
}

/// The ranks of an all-to-all exchange tokens for whole heads, so each must get a whole number of them.
void check_all_to_all(Check const& c, int size) {
  if (!c.known({"model.kv_heads", "parallel.tp"})) return;
  auto const tp = std::int64_t{c.config.parallel.tp}, kv_heads = c.config.model.kv_heads;
  // The rules of the model report heads that tp does not divide.
  if (kv_heads % tp != 0 || kv_heads / tp % size == 0) return;
  c.error({"context.exchange", "parallel.cp", "model.kv_heads", "parallel.tp"},
          "an all-to-all over a divisor of the key/value heads of a rank (model.kv_heads / parallel.tp)",
          fmt::format("{} ranks for {} / {} = {}", size, kv_heads, tp, base::counted(kv_heads / tp, "head")),
          fitting(c, size) == 1 ? std::string("set context.exchange to \"ring\" or \"gather\"")
                                : fmt::format("set context.exchange to {}, or to \"ring\"", pair_text(c, size)));
}

}  // namespace

void check_context(Check const& c) {
  if (!c.known({"parallel.cp", "context.exchange"})) return;
  auto const& x = c.config.context;
  auto const cp = c.config.parallel.cp;
  bool const nested = x.exchange == ContextExchange::nested;
  if (nested && std::int64_t{x.all_to_all} * x.ring != cp) {
    c.error({"context.exchange", "parallel.cp"}, "[a, r] with a x r = parallel.cp",
            fmt::format("[{}, {}] for cp {}", x.all_to_all, x.ring, cp),
            fmt::format("set context.exchange to {}", pair_text(c, x.all_to_all)));
  } else if (cp > 1 && nested) {
    check_all_to_all(c, x.all_to_all);
  } else if (cp > 1 && x.exchange == ContextExchange::all_to_all) {
    check_all_to_all(c, cp);
  }
  if (!c.known({"model.seq_len"}) || cp == 1 || c.config.model.seq_len >= 2 * std::int64_t{cp}) return;
  c.error({"parallel.cp", "model.seq_len"}, "at least two tokens of a sequence for each rank of cp",
          fmt::format("seq_len {} for cp {}", c.config.model.seq_len, cp),
          fmt::format("set parallel.cp to at most {}, or model.seq_len to at least {}",
                      std::max<std::int64_t>(1, c.config.model.seq_len / 2), 2 * std::int64_t{cp}));
}

}  // namespace p3d::config
