// SPDX-License-Identifier: Apache-2.0
// Bytes and waits of experts: against the messages of an exchange, counted one by one, and closed forms.

#include <p3d/config/config.hpp>
#include <p3d/layout/experts.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/traffic.hpp>

#include <gtest/gtest.h>

namespace {
using namespace p3d;

/// 4 layers, of which the 2nd and 4th have 8 experts; 2 x 32 tokens of a rank, fp32.
config::Config model(int ep, int etp) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 101, m.hidden = 48, m.layers = 4, m.heads = 6, m.kv_heads = 2, m.ffn = 80, m.seq_len = 32;
  m.moe.experts = 8, m.moe.top_k = 2, m.moe.every = 2, m.moe.ffn = 80;
  c.batch.micro = 2;
  c.parallel.ep = ep, c.parallel.etp = etp, c.parallel.dp = ep * etp;
  return c;
}

/// Rows that rank 0 sends to other ranks, each rank having 16 for each expert.
std::int64_t rows_sent(int ep, int etp) {
  layout::ExpertGroup group{.experts = 8, .ep = ep, .etp = etp, .ep_of = {}};
  for (int r = 0; r < ep * etp; ++r) group.ep_of.push_back(r / etp);
  layout::ExpertDispatch const dispatch(group, 0, std::vector<std::int64_t>(8u * ep * etp, 16), 1 << 20);
  std::int64_t sum = 0;
  for (int to = 1; to < group.size(); ++to) sum += dispatch.sent_to(0, to).size();
  return sum;
}

TEST(ExpertTraffic, IsThatOfTheMessages) {
  for (auto const& [ep, etp] : {std::pair{2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    auto const sent = plan::expert_traffic(model(ep, etp));
    double const rows = static_cast<double>(rows_sent(ep, etp)), counts = 8.0 * 8 * (ep * etp - 1);
    EXPECT_DOUBLE_EQ(sent.forward, counts + rows * 4 * (2 * 48 + 1)) << ep << " " << etp;
    EXPECT_DOUBLE_EQ(sent.backward, rows * 4 * (2 * 48 + 1)) << ep << " " << etp;
    EXPECT_DOUBLE_EQ(sent.again, counts + rows * 4 * (48 + 1)) << ep << " " << etp;
  }
  EXPECT_EQ(plan::expert_traffic(model(1, 1)).forward, 0);
}

// By gather each of the 64 tokens of a rank goes to all others of its group, once, with its 2 gates.
TEST(ExpertTraffic, OfGatherIsThatOfTheTokens) {
  for (auto const& [ep, etp] : {std::pair{2, 1}, {4, 1}, {1, 2}, {4, 2}}) {
    auto c = model(ep, etp);
    c.model.moe.dispatch = config::Dispatch::gather;
    auto const sent = plan::expert_traffic(c);
    double const each = ep * etp - 1, row = each * 64 * 48 * 4, gates = each * 64 * 2 * 4;
    EXPECT_DOUBLE_EQ(sent.forward, 2 * row + gates + each * (64 * 2 + 1) * 4);
    EXPECT_DOUBLE_EQ(sent.backward, 2 * row + gates);
    EXPECT_DOUBLE_EQ(sent.back, row);
    // As many rows as all-to-all where top_k etp = ep etp.
    if (ep == 2) {
      EXPECT_DOUBLE_EQ(row, rows_sent(ep, etp) * 48 * 4.0);
    }
  }
}

// ep 4: 3/4 of 64 x 2 rows.
TEST(ExpertWait, IsAPartOfTheStagesCosts) {
  layout::MachineRates const rates{.flops = 1e12, .bandwidth = 1e8, .latency = 3e-4};
  double const bytes = 96 * 4 * (2 * 48 + 1), counts = 3 * 64, start = 3 * 3e-4;
  auto const wait = plan::expert_wait(model(4, 1), rates);
  EXPECT_DOUBLE_EQ(wait.forward, 4 * start + (bytes + counts) / 1e8);
  EXPECT_DOUBLE_EQ(wait.backward, 3 * start + bytes / 1e8);
  EXPECT_DOUBLE_EQ(wait.again, 3 * start + (96 * 4 * 49 + counts) / 1e8);
  auto const costs = [&](int ep) {
    auto const c = model(ep, 1);
    return plan::model_costs(c, layout::StageMap({4}, 1), rates).stages[0];
  };
  auto const apart = costs(4), alone = costs(1);
  // Beside the way back lies the weight gradient of the first linear: 2 top_k hidden ffn operations for a token.
  auto const& m = model(4, 1).model;
  double const tokens = static_cast<double>(model(4, 1).batch.micro * m.seq_len);
  double const first = 2.0 * tokens * static_cast<double>(m.moe.top_k * m.hidden * m.moe.ffn) / rates.flops;
  EXPECT_NEAR(apart.forward - alone.forward, 2 * wait.forward, 1e-12);
  EXPECT_NEAR(apart.input - alone.input, 2 * (wait.backward - std::min(wait.back, first)), 1e-12);
  EXPECT_EQ(apart.forward_wait, apart.forward - alone.forward);
  EXPECT_EQ(apart.weight, alone.weight);
}

}  // namespace
