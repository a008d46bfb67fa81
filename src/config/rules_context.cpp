// SPDX-License-Identifier: Apache-2.0
// The rules of context parallelism.

#include "config/divide.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

namespace p3d::config {

namespace {

/// The ranks of an all-to-all exchange tokens for whole heads.
void check_all_to_all(Check const& c, int size) {
  if (!c.known({"model.kv_heads", "parallel.tp"})) return;
  auto const tp = std::int64_t{c.config.parallel.tp}, kv_heads = c.config.model.kv_heads;
  if (kv_heads % tp != 0 || kv_heads / tp % size == 0) return;  // the first is reported elsewhere
  c.fault({"context.exchange", "parallel.cp", "model.kv_heads", "parallel.tp"},
          "an all-to-all over a divisor of the key/value heads of a rank (model.kv_heads / parallel.tp)",
          fmt::format("{} ranks for {} / {} = {}", size, kv_heads, tp, base::counted(kv_heads / tp, "head")),
          fmt::format("choose [a, r] with a = {}, or \"ring\"", one_of(nearest_divisors(size, kv_heads / tp))));
}

}  // namespace

void check_context(Check const& c) {
  if (!c.known({"parallel.cp", "context.exchange"})) return;
  auto const& x = c.config.context;
  auto const cp = c.config.parallel.cp;
  bool const nested = x.exchange == ContextExchange::nested;
  if (nested && std::int64_t{x.all_to_all} * x.ring != cp) {
    c.fault({"context.exchange", "parallel.cp"}, "[a, r] with a x r = parallel.cp",
            fmt::format("[{}, {}] for cp {}", x.all_to_all, x.ring, cp),
            cp % x.all_to_all == 0 ? fmt::format("set context.exchange to [{}, {}]", x.all_to_all, cp / x.all_to_all)
                                   : fmt::format("choose a = {}", one_of(nearest_divisors(x.all_to_all, cp))));
  } else if (cp > 1 && nested) {
    check_all_to_all(c, x.all_to_all);
  } else if (cp > 1 && x.exchange == ContextExchange::all_to_all) {
    check_all_to_all(c, cp);
  }
  if (!c.known({"model.seq_len"}) || cp == 1 || c.config.model.seq_len >= 2 * std::int64_t{cp}) return;
  c.fault({"parallel.cp", "model.seq_len"}, "at least two tokens of a sequence for each rank of cp",
          fmt::format("seq_len {} for cp {}", c.config.model.seq_len, cp),
          fmt::format("set parallel.cp to at most {}, or model.seq_len to at least {}", c.config.model.seq_len / 2,
                      2 * std::int64_t{cp}));
}

}  // namespace p3d::config
