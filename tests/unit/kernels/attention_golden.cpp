// SPDX-License-Identifier: Apache-2.0
// Attention over packed documents and with a sliding window, against PyTorch (tests/golden/make_attention.py).

#include "attention_case.hpp"

#include <fstream>
#include <map>
#include <sstream>

namespace attention_test {

struct Golden {
  kernels::AttentionShape shape;
  std::vector<int> first;  ///< of each query's document
  std::map<std::string, Vec> values;
};

/// The cases of the file, by their name.
std::map<std::string, Golden> read_golden() {
  std::ifstream in(std::string(P3D_SOURCE_DIR) + "/tests/golden/attention.reference.txt");
  std::map<std::string, Golden> cases;
  Golden* current = nullptr;
  for (std::string line, word; std::getline(in, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "#") continue;
    if (word == "case") {
      words >> word;
      current = &cases[word];
      auto& s = current->shape;
      words >> s.seq_len >> s.heads >> s.kv_heads >> s.head_dim >> s.window;
      s.samples = 1;
      s.queries = s.keys = p3d::base::TokenSet::range(0, s.seq_len);
      s.scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
      for (int x = 0; words >> x;) current->first.push_back(x);
    } else {
      for (double x = 0; words >> x;) current->values[word].push_back(x);
    }
  }
  return cases;
}

class AttentionGolden : public ::testing::TestWithParam<char const*> {};

TEST_P(AttentionGolden, IsThatOfPyTorch) {
  auto const cases = read_golden();
  ASSERT_TRUE(cases.contains(GetParam()));
  auto [shape, first, values] = cases.at(GetParam());
  auto const documents = ints_of(first);
  shape.documents = documents;
  std::int64_t const tokens = shape.seq_len, wide = shape.heads * shape.head_dim,
                     narrow = shape.kv_heads * shape.head_dim;
  auto const given = [tokens, &values = values](char const* name, std::int64_t width) {
    return matrix_of<double>(tokens, width, values.at(name));
  };
  auto const q = given("q", wide), k = given("k", narrow), v = given("v", narrow), dout = given("dout", wide);
  Owned2<double> const out("p3d::test::out", tokens, wide), dq("p3d::test::dq", tokens, wide),
      dk("p3d::test::dk", tokens, narrow), dv("p3d::test::dv", tokens, narrow);
  Owned1<double> const lse("p3d::test::lse", tokens * shape.heads), delta("p3d::test::delta", tokens * shape.heads);
  auto const overwrite = kernels::Store::overwrite;
  auto const rows = [](Owned2<double> const& m) { return kernels::heads_of(View2<double const>(m)); };
  Scratch<double> const scratch(shape);
  kernels::attention_forward<double>(ExecSpace(), shape, {}, scratch, rows(q), rows(k), rows(v), overwrite,
                                     kernels::heads_of(View2<double>(out)), lse);
  kernels::attention_delta<double>(ExecSpace(), shape, rows(out), rows(dout), delta);
  kernels::attention_backward<double>(ExecSpace(), shape, {}, scratch, rows(q), rows(k), rows(v), rows(dout), lse,
                                      View1<double const>(delta), overwrite, kernels::heads_of(View2<double>(dq)),
                                      overwrite, kernels::heads_of(View2<double>(dk)),
                                      kernels::heads_of(View2<double>(dv)));
  expect_close(host(out), values.at("out"), 1e-12, "out");
  expect_close(host(dq), values.at("dq"), 1e-12, "dq");
  expect_close(host(dk), values.at("dk"), 1e-12, "dk");
  expect_close(host(dv), values.at("dv"), 1e-12, "dv");
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionGolden, ::testing::Values("packed", "sliding", "both"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace attention_test
