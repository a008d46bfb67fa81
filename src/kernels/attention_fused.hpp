// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention as one kernel of a vendor's library (FlashAttention's algorithm, Dao et al., arXiv 2205.14135), for GPUs
// that have such a library. No Kokkos, so that the vendor's file compiles by itself. Which calls may go there is
// decided in attention.cpp; the library may refuse more.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace p3d::kernels {

/// Causal attention of whole samples in 16 bits: query i sees keys [i + 1 - window, i]. Scores and sums are float.
struct FusedCall {
  enum class Type { bfloat16, float16 };
  /// Row r has its heads next to each other from data + r * stride on, head_dim elements each; stride in elements.
  /// Rows of q, out, dout and dq have `heads` of them, those of k, v, dk and dv `kv_heads`.
  struct Rows {
    void* data = nullptr;
    std::int64_t stride = 0;
  };
  /// What a plan of the library is made for: calls that are equal in these share one. (Pointers are given to each.)
  struct Shape {
    Type type = Type::bfloat16;
    std::int64_t samples = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0;
    std::int64_t window = 0;  ///< 0: all before
    float scale = 1;
    std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
    std::int64_t dout_stride = 0, dq_stride = 0, dk_stride = 0, dv_stride = 0;  ///< 0: forward
    bool operator==(Shape const&) const = default;
  };

  void* stream = nullptr;  ///< the vendor's, of device::native_stream
  Type type = Type::bfloat16;
  std::int64_t samples = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  double scale = 1;
  Rows q, k, v, out;     ///< [samples * seq_len] rows each
  float* lse = nullptr;  ///< [samples, heads, seq_len], the logarithm of each row's sum of exp(score)
  Rows dout, dq, dk, dv;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;

  /// Every address and every row on 16 bytes, which such libraries load at a time and do not all check.
  bool aligned(bool backward) const;
  Shape shape(bool backward) const;
};

class FusedAttention {
public:
  virtual ~FusedAttention();
  /// "cuDNN 9.19.0".
  virtual std::string name() const = 0;
  /// out and lse from q, k and v. False, with nothing done, where the library has no kernel for the shape that works in
  /// the workspace. Throws base::Error where a call fails that should not.
  virtual bool forward(FusedCall const& call) = 0;
  /// dq, dk and dv from q, k, v, out, lse and dout. False as above.
  virtual bool backward(FusedCall const& call) = 0;
  /// The bytes of workspace of the library's plan, made now where it is not there yet; none where it refuses the shape.
  virtual std::optional<std::int64_t> plan(FusedCall::Shape const& shape, bool backward) = 0;
  /// Why the last call or plan was refused.
  virtual std::string refusal() const = 0;
};

struct FusedOptions {
  /// Backward gives the same bits at every call. cuDNN 9.19 then keeps a number of 16 bits for each query and key of
  /// each head in its workspace, and without it adds up dq with atomics.
  bool deterministic = true;
  /// Properties of a GPU, in the library's own form, to plan for where there is none (tests/platforms/cudnn.sh); "":
  /// the GPU of this process.
  std::string device{};
};
/// Null in builds without such a library.
std::unique_ptr<FusedAttention> vendor_attention(FusedOptions const& options = {});

/// The library that calls of this process go to; null: none. Another one for tests.
std::shared_ptr<FusedAttention> fused_attention();
void set_fused_attention(std::shared_ptr<FusedAttention> library);

/// How a call is cut into calls of the library: each of so many samples, or of one sample and so many kv heads with
/// their query heads.
struct FusedCut {
  std::int64_t samples, kv_heads;
};
/// The largest pieces of equal size whose plan works in `bytes`; none where the library refuses the shape or all of
/// them. Attention of one sample and head does not know of others, so pieces change no result that is deterministic.
std::optional<FusedCut> cut_fused(FusedAttention& library, FusedCall::Shape const& shape, bool backward,
                                  std::int64_t bytes);
/// The call, in pieces. False, with nothing done, where the library refuses it.
bool run_fused(FusedAttention& library, FusedCall const& call, bool backward);

}  // namespace p3d::kernels
