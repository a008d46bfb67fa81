// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads config.json files in tests, and compares what was read.

#include "published_models.hpp"
#include "support.hpp"

#include <p3d/config/hugging_face.hpp>

#include <support/errors.hpp>

#include <string>
#include <vector>

namespace p3d::config::test {

inline HuggingFaceModel read(Json const& file) { return read_hugging_face(file.dump(), "F/config.json"); }

/// The file is refused, with its path and exactly one difference, which says this.
inline void refused_file(Json const& file, std::string const& words) {
  p3d::test::expect_error([&] { read(file); }, "F/config.json");
  p3d::test::expect_error([&] { read(file); }, "1 difference (");
  p3d::test::expect_error([&] { read(file); }, words);
}

/// Reads the file of a model that is a preset, with some keys besides, and compares both.
inline HuggingFaceModel read_preset(Json const& file, ModelFamily family, std::vector<std::string> const& overrides) {
  auto expected = good("", overrides).model;
  expected.preset.clear();
  auto found = read(file);
  EXPECT_EQ(found.family, family);
  EXPECT_EQ(found.model, expected);
  return found;
}

}  // namespace p3d::config::test
