// SPDX-License-Identifier: Apache-2.0
#pragma once
// Table 1 of arXiv 2104.04473: GPT models with sequence length 2048 and vocabulary 51200.

#include <p3d/config/config.hpp>

#include <vector>

namespace p3d::test {

struct PaperRow {
  double billions;  ///< parameters as printed
  std::int64_t heads, hidden, layers;
  int tp, pp, gpus;
  std::int64_t global;  ///< sequences per step
  double tflops;        ///< per GPU and second, as printed
  double seconds;       ///< per step, from the paper's formula with full recomputation

  config::Config config() const {
    config::Config c;
    c.model.vocab_size = 51200;
    c.model.seq_len = 2048;
    c.model.hidden = hidden;
    c.model.layers = layers;
    c.model.heads = c.model.kv_heads = heads;
    c.model.ffn = 4 * hidden;
    c.parallel.tp = tp;
    c.parallel.pp = pp;
    c.parallel.dp = gpus / (tp * pp);
    c.batch.global = global;
    return c;
  }
};

inline std::vector<PaperRow> const& paper_rows() {
  static std::vector<PaperRow> const rows{{1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 3.53},
                                          {3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 3.70},
                                          {7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 3.70},
                                          {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 9.40},
                                          {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 14.45},
                                          {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 16.06},
                                          {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 24.82},
                                          {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 37.61},
                                          {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 54.08},
                                          {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 102.63}};
  return rows;
}

}  // namespace p3d::test
