// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN, through its C++ frontend: a graph for each shape, planned once and kept. There is no Kokkos and
// no device code here, so g++ alone compiles it. A call finds the plan of its shape, gives it the addresses and runs it
// on the call's stream. A shape that cuDNN refuses keeps the reason in place of a plan, so it is asked only once.

#include <p3d/base/error.hpp>

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention_fused.hpp"

namespace p3d::kernels {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Throws base::Error with the library's own text unless a call was good.
void check(bool good, std::string const& call, std::string const& text) {
  if (good) return;
  throw base::Error(
      {.expected = call + " to succeed",
       .found = text,
       .where = "attention by cuDNN",
       .fix = "linalg.attention = \"gemms\" does without cuDNN; look for an earlier error of this GPU too"});
}

/// Scores between the first product and the softmax, as operations of the graph, where a call has documents or a cap.
/// cuDNN then takes no mask of its own beside them: this is the whole mask. cuDNN itself hides columns beyond the last
/// key.
class Scores {
public:
  using Graph = std::shared_ptr<fe::graph::Graph>;

  /// The capped and masked scores.
  Tensor forward(FusedCall::Shape const& s, Graph const& graph, Tensor scores, Tensor const& documents) {
    if (s.softcap > 0) {
      scaled_ = two(graph, scores, number(1 / s.softcap), fe::PointwiseMode_t::MUL, "cap_in");
      auto const bent = graph->pointwise(scaled_, options(fe::PointwiseMode_t::TANH_FWD, "cap"));
      scores = two(graph, bent, number(s.softcap), fe::PointwiseMode_t::MUL, "cap_out");
    }
    auto const row = place(graph, scores, 2, "row"), column = place(graph, scores, 3, "column");
    scores = keep(graph, scores, row, column, fe::PointwiseMode_t::CMP_GE, "causal");
    if (documents) scores = keep(graph, scores, column, documents, fe::PointwiseMode_t::CMP_GE, "document");
    if (s.window > 0 && s.window < s.seq_len) {
      auto const width = std::make_shared<fe::graph::Tensor_attributes>(static_cast<std::int32_t>(s.window));
      auto const end = two(graph, column, width, fe::PointwiseMode_t::ADD, "window_end", fe::DataType_t::INT32);
      scores = keep(graph, scores, end, row, fe::PointwiseMode_t::CMP_GT, "window");
    }
    return scores;
  }
  /// The gradient of the scores from that of the capped ones. (Masked ones have the gradient 0.)
  Tensor backward(FusedCall::Shape const& s, Graph const& graph, Tensor gradient) const {
    if (s.softcap > 0) gradient = two(graph, gradient, scaled_, fe::PointwiseMode_t::TANH_BWD, "cap_gradient");
    return gradient;
  }

private:
  static fe::graph::Pointwise_attributes options(fe::PointwiseMode_t mode, char const* name) {
    auto made = fe::graph::Pointwise_attributes().set_name(name);
    made.set_mode(mode);
    return made;
  }
  static Tensor number(float value) { return std::make_shared<fe::graph::Tensor_attributes>(value); }
  static Tensor two(Graph const& graph, Tensor const& a, Tensor const& b, fe::PointwiseMode_t mode, char const* name,
                    fe::DataType_t type = fe::DataType_t::FLOAT) {
    auto made = graph->pointwise(a, b, options(mode, name).set_compute_data_type(type));
    made->set_data_type(type);
    return made;
  }
  /// The number of each score's row (axis 2) or column (axis 3).
  static Tensor place(Graph const& graph, Tensor const& scores, std::int64_t axis, char const* name) {
    auto made = graph->pointwise(
        scores,
        options(fe::PointwiseMode_t::GEN_INDEX, name).set_axis(axis).set_compute_data_type(fe::DataType_t::INT32));
    made->set_data_type(fe::DataType_t::INT32);
    return made;
  }
  /// A score that is not seen. Its exponential is 0, and the difference of two of them is a number: with -infinity, or
  /// the lowest float times log2(e), rows whose first tiles are hidden would be NaN.
  static constexpr float unseen = -1e30F;
  /// The scores where a compares to b; `unseen` elsewhere.
  static Tensor keep(Graph const& graph, Tensor const& scores, Tensor const& a, Tensor const& b,
                     fe::PointwiseMode_t compares, char const* name) {
    auto const seen = two(graph, a, b, compares, name, fe::DataType_t::BOOLEAN);
    return graph->pointwise(scores, number(unseen), seen, options(fe::PointwiseMode_t::BINARY_SELECT, name));
  }

  Tensor scaled_{};
};

/// A graph of one shape, and the arrays that its plan wants. Without a plan the shape is refused.
struct Planned {
  FusedCall::Shape shape;
  bool backward = false;
  fe::graph::Graph graph{};
  Tensor q{}, k{}, v{}, out{}, lse{}, dout{}, dq{}, dk{}, dv{}, documents{};
  Scores scores{};                               ///< the mask and the cap, where they are operations of the graph
  std::unordered_map<Tensor, void*> pointers{};  ///< addresses of the last call
  std::int64_t workspace_bytes = 0;
  std::string refusal{};  ///< the reason of a refusal; "" with a plan
};

class Cudnn final : public FusedAttention {
public:
  explicit Cudnn(FusedOptions const& options) : deterministic_(options.deterministic) {
    auto const& device = options.device;
    if (device.empty()) return;
    device_ = std::make_shared<fe::DeviceProperties>();
    auto made = device_->deserialize({device.begin(), device.end()});
    check(made.is_good(), "a description of a GPU", made.get_message());
    auto const properties = nlohmann::json::parse(device);
    sm_version_ = properties.at("deviceVer").get<int>() / 10;
    sm_count_ = properties.at("multiProcessorCount").get<int>();
  }
  ~Cudnn() override {
    plans_.clear();
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }
  std::string name() const override {
    auto const v = static_cast<int>(cudnnGetVersion());
    return fmt::format("cuDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }
  bool forward(FusedCall const& call) override { return run(call, false); }
  bool backward(FusedCall const& call) override { return run(call, true); }
  std::optional<std::int64_t> plan(FusedCall::Shape const& shape, bool backward) override {
    auto const& plan = planned(shape, backward);
    refusal_ = plan.refusal;
    return plan.refusal.empty() ? std::optional(plan.workspace_bytes) : std::nullopt;
  }
  std::string refusal() const override { return refusal_; }

private:
  bool run(FusedCall const& call, bool backward) {
    if (!call.aligned(backward)) {
      refusal_ = "rows are not on 16 bytes";
      return false;
    }
    auto& plan = planned(call.shape(backward), backward);
    refusal_ = plan.refusal;
    if (plan.refusal.empty() && plan.workspace_bytes > call.workspace_bytes)
      refusal_ = fmt::format("its workspace has {} bytes, and p3d's {}", plan.workspace_bytes, call.workspace_bytes);
    if (!refusal_.empty()) return false;
    auto& at = plan.pointers;
    at[plan.q] = call.q.data, at[plan.k] = call.k.data, at[plan.v] = call.v.data;
    at[plan.out] = call.out.data, at[plan.lse] = call.lse;
    if (plan.documents) at[plan.documents] = const_cast<int*>(call.documents);
    if (backward)
      at[plan.dout] = call.dout.data, at[plan.dq] = call.dq.data, at[plan.dk] = call.dk.data,
      at[plan.dv] = call.dv.data;
    auto const status = cudnnSetStream(handle_, static_cast<cudaStream_t>(call.stream));
    check(status == CUDNN_STATUS_SUCCESS, "cudnnSetStream", cudnnGetErrorString(status));
    auto done = plan.graph.execute(handle_, at, call.workspace);
    check(done.is_good(), "a plan of cuDNN", done.get_message());
    return true;
  }

  /// The plan of a shape, which is made at the first question. The plans are a list because graphs must not move.
  Planned& planned(FusedCall::Shape const& shape, bool backward) {
    for (auto& plan : plans_)
      if (plan.backward == backward && plan.shape == shape) return plan;
    if (handle_ == nullptr && !device_) {
      auto const status = cudnnCreate(&handle_);
      check(status == CUDNN_STATUS_SUCCESS, "cudnnCreate", cudnnGetErrorString(status));
    }
    auto& plan = plans_.emplace_back();
    plan.shape = shape;
    plan.backward = backward;
    constexpr std::size_t pads_no_more = 91501;
    if (backward && own_mask(shape) && shape.seq_len % 128 != 0 && cudnnGetVersion() < pads_no_more) {
      plan.refusal = "before 9.15.1 it takes documents and capped scores only for samples of a multiple of 128 tokens";
      return plan;
    }
    if (device_) plan.graph.set_device_properties(device_).set_sm_version(sm_version_).set_sm_count(sm_count_);
    describe(plan);
    auto state = make_plan(plan.graph);
    if (state.is_good()) {
      plan.workspace_bytes = plan.graph.get_workspace_size();
    } else {  // the first line: names of engines follow, below a line of underscores
      plan.refusal = state.get_message().substr(0, state.get_message().find('\n'));
      plan.refusal.erase(plan.refusal.find_last_not_of("_ ") + 1);
    }
    return plan;
  }

  fe::error_t make_plan(fe::graph::Graph& graph) {
    if (auto e = graph.validate(); e.is_bad()) return e;
    if (auto e = graph.build_operation_graph(handle_); e.is_bad()) return e;
    if (auto e = graph.create_execution_plans({fe::HeurMode_t::A}); e.is_bad()) return e;
    if (auto e = graph.check_support(handle_); e.is_bad()) return e;
    return graph.build_plans(handle_);
  }

  /// An input tensor [samples, heads, seq_len, width], as FusedCall::Rows has it in memory.
  static Tensor rows(Planned& plan, char const* name, std::int64_t heads, std::int64_t width, std::int64_t stride) {
    auto const& s = plan.shape;
    return plan.graph.tensor(fe::graph::Tensor_attributes()
                                 .set_name(name)
                                 .set_dim({s.samples, heads, s.seq_len, width})
                                 .set_stride({s.seq_len * stride, width, stride, 1}));
  }
  /// Makes t an output [samples, heads, seq_len, width], as FusedCall::Rows has it in memory.
  static void place_rows(Planned const& plan, Tensor const& t, std::int64_t heads, std::int64_t width,
                         std::int64_t stride) {
    auto const& s = plan.shape;
    t->set_output(true)
        .set_dim({s.samples, heads, s.seq_len, width})
        .set_stride({s.seq_len * stride, width, stride, 1});
  }

  /// True when the mask is of p3d's own operations (Scores).
  static bool own_mask(FusedCall::Shape const& s) { return s.documents || s.softcap > 0; }
  /// Fills the graph with the operations of forward or of backward.
  void describe(Planned& plan) const {
    auto const& s = plan.shape;
    plan.graph.set_io_data_type(s.type == FusedCall::Type::bfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    std::vector<std::int64_t> const row_dim{s.samples, s.heads, s.seq_len, 1};
    std::vector<std::int64_t> const row_stride{s.heads * s.seq_len, s.seq_len, 1, 1};
    plan.q = rows(plan, "q", s.heads, s.head_dim, s.q_stride);
    plan.k = rows(plan, "k", s.kv_heads, s.head_dim, s.k_stride);
    plan.v = rows(plan, "v", s.kv_heads, s.value_dim, s.v_stride);
    // A window of w counts the query itself, in cuDNN as in p3d: keys with column + w > row are seen.
    bool const window = s.window > 0 && s.window < s.seq_len, masked = own_mask(s);
    if (s.documents)
      plan.documents = plan.graph.tensor(fe::graph::Tensor_attributes()
                                             .set_name("documents")
                                             .set_data_type(fe::DataType_t::INT32)
                                             .set_dim({s.samples, 1, s.seq_len, 1})
                                             .set_stride({s.seq_len, s.seq_len, 1, 1}));
    auto const bent = [&plan](Scores::Graph const& graph, Tensor scores) {
      return plan.scores.forward(plan.shape, graph, std::move(scores), plan.documents);
    };
    if (!plan.backward) {
      auto options =
          fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_attn_scale(s.scale);
      options.set_causal_mask(!masked);
      if (masked)
        options.set_score_mod(bent);
      else if (window)
        options.set_diagonal_band_left_bound(static_cast<int>(s.window));
      auto const [out, lse] = plan.graph.sdpa(plan.q, plan.k, plan.v, options);
      place_rows(plan, out, s.heads, s.value_dim, s.out_stride);
      lse->set_output(true).set_data_type(fe::DataType_t::FLOAT).set_dim(row_dim).set_stride(row_stride);
      plan.out = out;
      plan.lse = lse;
      return;
    }
    plan.out = rows(plan, "out", s.heads, s.value_dim, s.out_stride);
    plan.dout = rows(plan, "dout", s.heads, s.value_dim, s.dout_stride);
    plan.lse = plan.graph.tensor(fe::graph::Tensor_attributes()
                                     .set_name("lse")
                                     .set_data_type(fe::DataType_t::FLOAT)
                                     .set_dim(row_dim)
                                     .set_stride(row_stride));
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_attn_scale(s.scale);
    options.set_causal_mask(!masked).set_deterministic_algorithm(deterministic_);
    if (masked) {
      options.set_score_mod(bent);
      options.set_score_mod_bprop([&plan](Scores::Graph const& graph, Tensor gradient) {
        return plan.scores.backward(plan.shape, graph, std::move(gradient));
      });
    } else if (window)
      options.set_diagonal_band_left_bound(static_cast<int>(s.window));
    auto const [dq, dk, dv] = plan.graph.sdpa_backward(plan.q, plan.k, plan.v, plan.out, plan.dout, plan.lse, options);
    place_rows(plan, dq, s.heads, s.head_dim, s.dq_stride);
    place_rows(plan, dk, s.kv_heads, s.head_dim, s.dk_stride);
    place_rows(plan, dv, s.kv_heads, s.value_dim, s.dv_stride);
    plan.dq = dq;
    plan.dk = dk;
    plan.dv = dv;
  }

  bool deterministic_;
  std::shared_ptr<fe::DeviceProperties> device_;  ///< null: the GPU of the handle
  int sm_version_ = 0, sm_count_ = 0;             ///< properties of that GPU
  cudnnHandle_t handle_ = nullptr;
  std::list<Planned> plans_;
  std::string refusal_;
};

}  // namespace

std::unique_ptr<FusedAttention> vendor_attention(FusedOptions const& options) {
  return std::make_unique<Cudnn>(options);
}

}  // namespace p3d::kernels
