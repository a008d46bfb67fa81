// SPDX-License-Identifier: Apache-2.0
// The routers of transformers' models (tests/golden/make_routing.py): choice, gates and the gradient of the logits.

#include "support.hpp"

#include <p3d/kernels/routing.hpp>

#include <fstream>
#include <map>
#include <sstream>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace routing_golden_test {

struct Golden {
  std::int64_t tokens = 0;
  kernels::Routing routing;
  std::map<std::string, Vec> values;
};

/// The cases of the file, by their name.
std::map<std::string, Golden> read_golden() {
  std::ifstream in(std::string(P3D_SOURCE_DIR) + "/tests/golden/routing.reference.txt");
  std::map<std::string, Golden> cases;
  Golden* current = nullptr;
  for (std::string line, word; std::getline(in, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "#") continue;
    if (word == "case") {
      words >> word;
      current = &cases[word];
      auto& r = current->routing;
      words >> current->tokens >> r.experts >> r.top_k >> word >> r.groups >> r.group_top_k >> r.normalize >> r.scale;
      r.score = word == "softmax" ? kernels::Score::softmax : kernels::Score::sigmoid;
    } else {
      for (double x = 0; words >> x;) current->values[word].push_back(x);
    }
  }
  return cases;
}

class RoutingGolden : public ::testing::TestWithParam<char const*> {};

TEST_P(RoutingGolden, IsThatOfTransformers) {
  auto const cases = read_golden();
  ASSERT_TRUE(cases.contains(GetParam()));
  auto [tokens, r, values] = cases.at(GetParam());
  auto const logits = matrix_of<double>(tokens, r.experts, values.at("logits"));
  auto const d_gates = matrix_of<double>(tokens, r.top_k, values.at("d_gates"));
  auto const bias = vector_of<double>(values["bias"]);
  Owned2<double> const scores("p3d::test::scores", tokens, r.experts), gates("p3d::test::gates", tokens, r.top_k),
      d_logits("p3d::test::d_logits", tokens, r.experts);
  Owned1<double> const lse("p3d::test::lse", tokens), total("p3d::test::total", tokens);
  Owned2<int> const choice("p3d::test::choice", tokens, r.top_k);
  kernels::RouterScores<double> const saved{scores, lse, total};
  kernels::route_forward<double>(ExecSpace(), r, logits, bias, saved, choice, gates);
  kernels::route_backward<double>(ExecSpace(), r, logits, saved, choice, d_gates, {tokens}, {}, 0.0, d_logits);
  EXPECT_EQ(host(choice), values.at("choice"));
  expect_close(host(gates), values.at("gates"), 1e-13, "gates");
  expect_close(host(d_logits), values.at("d_logits"), 1e-13, "d_logits");
}
INSTANTIATE_TEST_SUITE_P(Models, RoutingGolden,
                         ::testing::Values("mixtral", "qwen2_moe", "qwen2_moe_normalized", "deepseek_v2", "deepseek_v3",
                                           "deepseek_v3_not_normalized"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace routing_golden_test
