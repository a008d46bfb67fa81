// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention as one kernel of a vendor's library (FlashAttention's algorithm, Dao et al., arXiv 2205.14135), for GPUs
// that have such a library. There is no Kokkos here, so that the vendor's file compiles by itself. attention.cpp
// decides which calls may go to the library; the library may refuse more of them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace p3d::kernels {

/// A call of causal attention of whole samples in 16 bits: query i sees keys [i + 1 - window, i], and none before the
/// first token of its document. Scores and sums are float. With a cap c a score s counts as c tanh(s / c).
struct FusedCall {
  enum class Type { bfloat16, float16 };
  /// The rows of a matrix. Row r has its heads next to each other from data + r * stride on; stride is in elements.
  /// Rows of q, out, dout and dq have `heads` of them, those of k, v, dk and dv `kv_heads`. A head of q, k, dq and dk
  /// has head_dim elements, one of v, out, dout and dv value_dim.
  struct Rows {
    void* data = nullptr;
    std::int64_t stride = 0;
  };
  /// The properties that a plan of the library is made for: calls that are equal in these share a plan. (Each call
  /// gives its own pointers.)
  struct Shape {
    Type type = Type::bfloat16;
    std::int64_t samples = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
    std::int64_t window = 0;  ///< keys that a query sees, itself included; 0: all before it
    float scale = 1;
    float softcap = 0;       ///< 0: none
    bool documents = false;  ///< the call has them
    std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
    std::int64_t dout_stride = 0, dq_stride = 0, dk_stride = 0, dv_stride = 0;  ///< 0 in forward
    bool operator==(Shape const&) const = default;
  };

  void* stream = nullptr;  ///< the vendor's stream, from device::native_stream
  Type type = Type::bfloat16;
  std::int64_t samples = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, window = 0;
  double scale = 1, softcap = 0;
  int const* documents = nullptr;  ///< [samples, seq_len]: the first token of each token's document; null: token 0
  Rows q, k, v, out;               ///< [samples * seq_len] rows each
  float* lse = nullptr;            ///< [samples, heads, seq_len], the logarithm of each row's sum of exp(score)
  /// The rows of backward: the gradient of out, and the results.
  Rows dout, dq, dk, dv;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;

  /// True when every address and every row lies on a multiple of 16 bytes. Such libraries load 16 bytes at a time and
  /// do not all check.
  bool aligned(bool backward) const;
  /// The shape of this call, for forward or for backward.
  Shape shape(bool backward) const;
};

/// A vendor's attention library. Calls come from one thread at a time.
class FusedAttention {
public:
  virtual ~FusedAttention();
  /// The library's name and version, such as "cuDNN 9.19.0".
  virtual std::string name() const = 0;
  /// Computes out and lse from q, k and v. Returns false, with nothing done, where the library has no kernel for the
  /// shape that works in the workspace. Throws base::Error where a call fails that should not.
  virtual bool forward(FusedCall const& call) = 0;
  /// Computes dq, dk and dv from q, k, v, out, lse and dout. Returns false and throws as forward does.
  virtual bool backward(FusedCall const& call) = 0;
  /// The bytes of workspace that the library's plan for a shape needs. The plan is made at the first question. Empty
  /// where the library refuses the shape.
  virtual std::optional<std::int64_t> plan(FusedCall::Shape const& shape, bool backward) = 0;
  /// The reason why the last call or plan was refused.
  virtual std::string refusal() const = 0;
};

/// Properties that a library is opened with.
struct FusedOptions {
  /// Makes backward give the same bits at every call. cuDNN 9.19 then keeps a number of 16 bits for each query and key
  /// of each head in its workspace; without it, it adds up dq with atomics.
  bool deterministic = true;
  /// Properties of a GPU, in the library's own form, to plan for where there is none (tests/platforms/cudnn.sh). With
  /// "" plans are for the GPU of this process.
  std::string device{};
};
/// Opens the vendor's library; null in builds without one.
std::unique_ptr<FusedAttention> vendor_attention(FusedOptions const& options = {});

/// The library that calls of this process go to, or null.
std::shared_ptr<FusedAttention> fused_attention();
/// Replaces that library; tests give one of their own.
void set_fused_attention(std::shared_ptr<FusedAttention> library);

/// The size of the calls that one call is cut into for the library: `samples` samples with all kv heads, or one sample
/// with `kv_heads` kv heads and their query heads.
struct FusedCut {
  std::int64_t samples, kv_heads;
};
/// The largest pieces of equal size whose plan works in `bytes`. Empty where the library refuses the shape or all
/// sizes. Attention of one sample and head does not depend on others, so pieces change no result that is deterministic.
std::optional<FusedCut> cut_fused(FusedAttention& library, FusedCall::Shape const& shape, bool backward,
                                  std::int64_t bytes);
/// Runs the call in pieces. Returns false, with nothing done, where the library refuses it.
bool run_fused(FusedAttention& library, FusedCall const& call, bool backward);

}  // namespace p3d::kernels
