// SPDX-License-Identifier: Apache-2.0
// 16-bit GEMMs by oneDNN, versions 2.x and 3.x, for processors with 16-bit units. Only bfloat16: oneDNN 2.x adds
// float16 products up in float16.

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <array>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "gemm16.hpp"
#include "onednn_call.hpp"

namespace p3d::linalg::detail {

namespace {

dnnl::engine const& cpu() {
  static dnnl::engine const engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

using Shape =
    std::tuple<bool, Op, Op, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;
Shape shape_of(Gemm16 const& g) {
  return {g.wide_c, g.op_a, g.op_b, g.m, g.n, g.k, g.lda, g.ldb, g.ldc, g.beta != 0.0F};
}

/// The objects with which one thread executes a GEMM. Handles to memory are kept, because making them takes memory from
/// the heap.
struct PerThread {
  dnnl::stream stream{cpu()};
  std::array<dnnl::memory, 4> memories;
  std::array<dnnl_exec_arg_t, 4> arguments;
};

/// A shape's primitive and its threads' objects; not usable where oneDNN has nothing good for the shape.
struct Prepared {
  bool usable = false;
  dnnl::matmul matmul;
  std::vector<PerThread> threads;
};

/// The prepared GEMMs by shape. One thread adds to the map, outside of parallel regions; many read it.
std::map<Shape, Prepared>& all_prepared() {
  static std::map<Shape, Prepared> map;
  return map;
}

dnnl::memory::desc describe(std::int64_t rows, std::int64_t cols, Op op, std::int64_t ld, bool wide) {
  using Data = dnnl::memory::data_type;
  return {{rows, cols},
          wide ? Data::f32 : Data::bf16,
          op == Op::none ? dnnl::memory::dims{ld, 1} : dnnl::memory::dims{1, ld}};
}

/// Prepares a GEMM. Returns false where oneDNN has only its reference loops for this shape, or needs more than the
/// workspace.
bool make(Gemm16 const& g, int threads, Prepared& out) {
  auto const a = describe(g.m, g.k, g.op_a, g.lda, false), b = describe(g.k, g.n, g.op_b, g.ldb, false),
             c = describe(g.m, g.n, Op::none, g.ldc, g.wide_c);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.beta != 0.0F) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  dnnl::matmul::primitive_desc const what(cpu(), a, b, c, attributes, true);
#else
  dnnl::matmul::primitive_desc const what(dnnl::matmul::desc(a, b, c), attributes, cpu(), true);
#endif
  if (!what || std::string_view(what.impl_info_str()).starts_with("ref")) return false;
  auto const scratchpad = what.scratchpad_desc();
  if (scratchpad.get_size() > static_cast<std::size_t>(panel_floats) * sizeof(float)) return false;
  out.matmul = dnnl::matmul(what);
  out.threads.resize(static_cast<std::size_t>(threads));
  for (auto& thread : out.threads) {
    auto const handle = [](dnnl::memory::desc const& d) { return dnnl::memory(d, cpu(), DNNL_MEMORY_NONE); };
    thread.memories = {handle(a), handle(b), handle(c), handle(scratchpad)};
    constexpr int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    for (std::size_t i = 0; i < 4; ++i) thread.arguments[i] = {names[i], thread.memories[i].get()};
  }
  return true;
}

}  // namespace

std::string onednn_method(Type16 type) {
  if (type != Type16::bfloat16) return "";
  auto const isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  auto const has = [isa](dnnl::cpu_isa wanted) {
    auto const bits = static_cast<unsigned>(wanted);
    return (isa & bits) == bits;
  };
  if (!has(dnnl::cpu_isa::avx512_core_bf16)) return "";
  auto const* const v = dnnl::version();
  return fmt::format("oneDNN {}.{}.{} with {}", v->major, v->minor, v->patch,
                     has(dnnl::cpu_isa::avx512_core_amx) ? "AMX" : "AVX512-BF16");
}

bool prepare_onednn(Gemm16 const& g, int threads) {
  static bool const has_units = !onednn_method(Type16::bfloat16).empty();
  if (!has_units || g.type != Type16::bfloat16 || g.alpha != 1.0F || (g.beta != 0.0F && g.beta != 1.0F)) return false;
  auto& all = all_prepared();
  auto const [place, is_new] = all.try_emplace(shape_of(g));
  auto& prepared = place->second;
  if (is_new || (prepared.usable && prepared.threads.size() < static_cast<std::size_t>(threads))) {
    OnednnCall const call;
    prepared.usable = make(g, threads, prepared);
  }
  return prepared.usable;
}

void onednn_gemm(Gemm16 const& g, int thread, float* workspace) {
  OnednnCall const call;
  auto& prepared = all_prepared().at(shape_of(g));
  auto& mine = prepared.threads[static_cast<std::size_t>(thread)];
  void* const data[] = {const_cast<std::uint16_t*>(g.a), const_cast<std::uint16_t*>(g.b), g.c, workspace};
  bool good = true;
  for (std::size_t i = 0; i < 4; ++i)
    good = good && dnnl_memory_set_data_handle(mine.memories[i].get(), data[i]) == dnnl_success;
  good = good &&
         dnnl_primitive_execute(prepared.matmul.get(), mine.stream.get(), 4, mine.arguments.data()) == dnnl_success;
  P3D_REQUIRE(good, "oneDNN carries out a GEMM that it has prepared");
}

}  // namespace p3d::linalg::detail
