// SPDX-License-Identifier: Apache-2.0
// The numbers of a vendor's attention library on its GPU. Compiled only where p3d is built with such a library.

#include "attention_case.hpp"

#include <p3d/kernels/fused_attention.hpp>

namespace attention_test {

namespace {

/// Sends calls to the library as long as it lives.
struct Library {
  explicit Library(bool deterministic) {
    kernels::reserve_fused_workspace(std::int64_t{256} << 20);
    kernels::use_fused_attention(true, deterministic);
  }
  ~Library() {
    kernels::use_fused_attention(false);
    kernels::reserve_fused_workspace(0);
  }
};

/// Expects the plain numbers of a case in both types, and that the library computed them.
void expect_library(Case const& c) {
  SCOPED_TRACE(c.name() + (c.window > 0 ? "_window" : "") + (c.documents.empty() ? "" : "_documents"));
  for (bool deterministic : {true, false}) {
    Library const use(deterministic);
    auto const before = kernels::fused_attention_calls();
    expect_plain<bfloat16>(c);
    expect_plain<float16>(c);
    EXPECT_EQ(kernels::fused_attention_calls() - before, 4) << kernels::fused_attention_refusal();
  }
}

}  // namespace

TEST(VendorAttention, ComputesWholeSamples) {
  for (std::int64_t window : {0, 40})
    for (std::int64_t values : {64, 128}) {
      auto c = with_values({2, 200, 4, 2, 128, 0.0}, values);
      c.window = window;
      expect_library(c);
    }
}

TEST(VendorAttention, ComputesDocumentsAndCaps) {
  for (std::int64_t window : {0, 40})
    for (double cap : {0.0, 0.75}) {
      auto c = with_cap({2, 256, 2, 1, 64, 0.0}, cap);
      c.window = window;
      if (cap > 0) expect_library(c);
      // Some queries see nothing of the first tiles of keys, and one sees itself alone.
      c.documents = documents_of(2, 256, {130, 125, 1, 1, 69, 186});
      expect_library(c);
    }
}

TEST(VendorAttention, ComputesDocumentsOfAnyLength) {
  Case c{1, 200, 2, 1, 64, 0.0};
  c.documents = documents_of(1, 200, {130, 69, 1});
  {
    Library const use(true);
    expect_plain<bfloat16>(c);
    auto const refusal = kernels::fused_attention_refusal();
    if (refusal.find("before 9.15.1") != std::string::npos) GTEST_SKIP() << refusal;
  }
  expect_library(c);
}

TEST(VendorAttention, ComputesWideHeads) {
  expect_library(with_cap({1, 128, 2, 1, 256, 0.0}, 2.0));
  expect_library(with_values({1, 96, 2, 2, 192, 0.0}, 128));
}

}  // namespace attention_test
