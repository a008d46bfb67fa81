// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small set of arrays, cut over ranks in different ways.

#include <p3d/config/optimizer_state.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/model_files.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace p3d::test {

/// The value of an element: every array and place has its own.
inline double value_of(std::size_t array, std::int64_t i) {
  return static_cast<double>(array + 1) * 1000003.0 + static_cast<double>(i) * 0.37;
}

inline std::vector<io::TableRow> small_table() {
  return {{.name = "embed.token.weight", .rows = 101, .cols = 96, .layer = -1, .decay = true},
          {.name = "layers.0.norm1.weight", .rows = 1, .cols = 96, .vector = true},
          {.name = "layers.0.attn.out.weight", .rows = 96, .cols = 96, .decay = true},
          {.name = "layers.0.mlp.up.bias", .rows = 1, .cols = 384, .vector = true},
          {.name = "layers.0.mlp.up.weight", .rows = 200, .cols = 96, .decay = true}};
}

inline io::CheckpointHeader small_header(io::Element element) {
  io::CheckpointHeader h;
  h.step = 15;
  h.tokens = 15 * 1024;
  h.versions_made = 1;
  h.samples = 15 * 8;
  h.seed = 18446744073709551615ULL;
  h.data_hash = 0xfedcba9876543210ULL;
  h.element = element;
  h.p3d_version = "0.0 (test)";
  h.origin = "weights 0123456789abcdef of old.h5 (step 5)";
  h.input = "[run]\nname = \"small\"\n";
  h.tokenizer = {"tokenizer.model", "", 0x123456789abcdef0ULL, 7, std::string("\0\x0a\xff words \0\0", 12)};
  return h;
}

inline io::ModelFiles small_model_files() {
  return {{"config.json", "{}"},
          {"tokenizer.model", small_header(io::Element::float32).tokenizer.file},
          {"chat_template.jinja", "{{ messages }}\n"}};
}

/// The arrays that the optimizer of an input has by default.
inline config::StateArrays adamw_state() { return config::state_of({}).arrays; }

/// The parts of one rank and their memory: the embedding by padded rows over `comm`, the projection by columns, the
/// second vector by columns; the first one and the last matrix replicated, of which the matrix is large enough for its
/// replicas to share the work.
template <class T>
struct SmallParts {
  std::vector<std::vector<T>> memory;
  std::vector<io::CheckpointPart> parts;

  SmallParts(comm::Communicator& comm, comm::Communicator& self, bool fill) {
    auto const table = small_table();
    auto const arrays = io::checkpoint_arrays(table, adamw_state());
    int const n = comm.size(), r = comm.rank();
    memory.resize(arrays.size());
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      io::CheckpointPart p;
      p.array = arrays[a].name;
      p.global_rows = p.rows = arrays[a].rows;
      p.global_cols = p.cols = arrays[a].cols;
      p.replicas = &self;
      switch (a % table.size()) {
        case 0: {
          auto const each = (p.rows + n - 1) / n;
          p.row_begin = std::min<std::int64_t>(each * r, p.global_rows);
          p.rows = std::min<std::int64_t>(p.global_rows, p.row_begin + each) - p.row_begin;
          break;
        }
        case 1:
        case 4: p.replicas = &comm; break;
        default: p.col_begin = p.global_cols * r / n; p.cols = p.global_cols * (r + 1) / n - p.col_begin;
      }
      auto& m = memory[a];
      m.assign(static_cast<std::size_t>(p.rows * p.cols), T(-1));
      if (fill) {
        for (std::int64_t i = 0; i < p.rows; ++i) {
          for (std::int64_t j = 0; j < p.cols; ++j) {
            m[static_cast<std::size_t>(i * p.cols + j)] =
                static_cast<T>(value_of(a, (p.row_begin + i) * p.global_cols + p.col_begin + j));
          }
        }
      }
      p.copy_out = [&m](std::int64_t first, std::int64_t count, void* out) {
        std::memcpy(out, m.data() + first, static_cast<std::size_t>(count) * sizeof(T));
      };
      p.copy_in = [&m](std::int64_t first, std::int64_t count, void const* in) {
        std::memcpy(m.data() + first, in, static_cast<std::size_t>(count) * sizeof(T));
      };
      parts.push_back(std::move(p));
    }
  }
};

}  // namespace p3d::test
