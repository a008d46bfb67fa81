// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests of whole trainings share: the numbers that a training makes, memory against prediction.

#include <p3d/engine/trainer.hpp>

#include <support/tiny.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace p3d::test {

/// The words of a text, which single spaces part: keys of an input in one line.
inline std::vector<std::string> words_of(std::string const& text) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    auto const end = std::min(text.find(' ', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// The likeliest continuation of a text of bytes.
template <class P>
std::vector<int> greedy(engine::Trainer<P>& trainer, std::string_view prompt, std::int64_t tokens) {
  engine::SampleOptions o;
  o.tokens = tokens;
  o.temperature = 0.0;
  std::vector<int> read;
  for (char c : prompt) read.push_back(static_cast<unsigned char>(c));
  return trainer.sample({read}, o).front();
}

/// Losses, norms, all gradients of the last step, a validation loss, a sample and all weights; bit for bit.
template <class P>
std::vector<double> train(engine::Trainer<P>& trainer, int steps) {
  std::vector<double> out;
  for (int s = 0; s < steps; ++s) {
    trainer.inspection().keep_gradients(s == steps - 1);
    auto const result = trainer.step();
    out.push_back(result.loss);
    out.push_back(result.grad_norm);
    if (s == 1) out.push_back(trainer.evaluate(1));
  }
  for (auto const& spec : trainer.plan().table.specs()) {
    for (double x : trainer.inspection().gather_gradient(spec.name)) out.push_back(x);
    for (double x : trainer.inspection().gather_value(spec.name)) out.push_back(x);
  }
  for (int c : greedy(trainer, "The", 2)) out.push_back(c);
  return out;
}

/// Measured against predicted memory, by purpose, to 1 %; activations exactly.
inline void expect_memory(plan::MemoryPrediction const& found, plan::MemoryPrediction const& expected) {
  auto const close = [](std::int64_t a, std::int64_t b) {
    return std::abs(static_cast<double>(a - b)) <= 0.01 * static_cast<double>(std::max(a, b));
  };
  EXPECT_PRED2(close, found.params, expected.params);
  EXPECT_PRED2(close, found.grads, expected.grads);
  EXPECT_PRED2(close, found.optimizer, expected.optimizer);
  EXPECT_EQ(found.activations, expected.activations);
  EXPECT_PRED2(close, found.staging, expected.staging);
  EXPECT_PRED2(close, found.total(), expected.total());
}

}  // namespace p3d::test
