// SPDX-License-Identifier: Apache-2.0
// What cuDNN makes of p3d's attention on a GPU that is not here: its plans, and the memory that they work in.
// usage: cudnn_plans <description of a GPU, in cuDNN's form>

#include <p3d/base/memory_sizes.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

#include "kernels/attention_fused.hpp"

int main(int argc, char** argv) {
  using namespace p3d::kernels;
  if (argc != 2) return 2;
  std::ifstream file(argv[1]);
  std::string const device{std::istreambuf_iterator<char>(file), {}};
  // Before Hopper the backward pass has no wide heads, and no mask of our own.
  bool const hopper = nlohmann::json::parse(device).at("deviceVer").get<int>() >= 900;
  int refused = 0;
  for (bool const deterministic : {true, false}) {
    auto const library = vendor_attention({.deterministic = deterministic, .device = device});
    fmt::print("{}, {}\n", library->name(), deterministic ? "the same bits every time" : "sums by atomics");
    std::puts(
        "type  head_dim values tokens window documents cap  forward MiB  backward MiB  pieces in 256 MiB (samples x kv "
        "heads)");
    for (auto const type : {FusedCall::Type::bfloat16, FusedCall::Type::float16})
      for (auto const& [dim, values, tokens, window, documents, cap] : {std::tuple(64, 64, 2048, 0, false, 0.F),
                                                                        {64, 64, 8192, 0, false, 0.F},
                                                                        {128, 128, 2048, 0, false, 0.F},
                                                                        {128, 128, 8192, 0, false, 0.F},
                                                                        {128, 128, 8192, 1024, false, 0.F},
                                                                        {96, 96, 1000, 0, false, 0.F},
                                                                        {192, 128, 2048, 0, false, 0.F},
                                                                        {64, 64, 2048, 0, true, 0.F},
                                                                        {128, 128, 8192, 0, true, 0.F},
                                                                        {128, 128, 8192, 1024, true, 0.F},
                                                                        {96, 96, 1000, 0, true, 0.F},
                                                                        {64, 64, 200, 0, true, 0.F},
                                                                        {192, 128, 2048, 0, true, 0.F},
                                                                        {128, 128, 2048, 0, false, 50.F},
                                                                        {256, 256, 2048, 1024, false, 50.F},
                                                                        {128, 128, 8192, 4096, true, 50.F}}) {
        FusedCall::Shape s;
        s.type = type;
        s.samples = 2, s.seq_len = tokens, s.heads = 32, s.kv_heads = 8, s.window = window, s.documents = documents,
        s.softcap = cap;
        s.head_dim = dim, s.value_dim = values;
        s.scale = 0.125F;
        s.q_stride = s.k_stride = s.v_stride = 40 * dim + 8 * values, s.out_stride = 32 * values;
        auto back = s;
        back.dout_stride = s.out_stride;
        back.dq_stride = back.dk_stride = back.dv_stride = s.q_stride;
        std::string text =
            fmt::format("{}  {:8} {:6} {:6} {:6} {:9} {:3}", type == FusedCall::Type::bfloat16 ? "bf16" : "fp16", dim,
                        values, tokens, window, documents, cap);
        for (bool const backward : {false, true}) {
          auto const bytes = library->plan(backward ? back : s, backward);
          bool const masked = documents || cap > 0;
          if (!bytes && (hopper || (dim <= 128 && !masked))) ++refused;
          text += bytes ? fmt::format("  {:12.1f}", static_cast<double>(*bytes) / 1048576)
                        : "  refused: " + library->refusal();
        }
        // One head of keys with its queries works in the memory that a run plans for it.
        auto one = back;
        one.samples = one.kv_heads = 1, one.heads = s.heads / s.kv_heads;
        auto const planned =
            p3d::base::fused_attention_bytes(1, tokens, one.heads, 1, std::max(dim, values), deterministic);
        if (auto const bytes = library->plan(one, true); bytes && planned > 0 && *bytes > planned) {
          ++refused;
          text += fmt::format("  a head takes {} bytes, planned are {}", *bytes, planned);
        }
        auto const cut = cut_fused(*library, back, true, 256 << 20);
        text += cut ? fmt::format("  {} x {}", cut->samples, cut->kv_heads) : "  none";
        std::puts(text.c_str());
        std::fflush(stdout);
      }
  }
  return refused == 0 ? 0 : 1;
}
