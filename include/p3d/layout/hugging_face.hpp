// SPDX-License-Identifier: Apache-2.0
#pragma once
// The correspondence of p3d's parameters and tensors of Hugging Face transformers, for the families of
// config::model_families(). Names of Llama serve all that are like it; of experts, Mixtral has its own, and the others
// share Qwen2-MoE's. DeepSeek-V3 and GLM-4.5 store the biases of the choice of experts, in fp32.
//
// GPT-2 stores the matrices c_attn, c_proj and c_fc as [in, out] (its class Conv1D), and q, k, v side by side in
// c_attn. Llama's are [out, in], as p3d's; its rotary embedding pairs dimensions i and i + head_dim / 2, as p3d's.
// Every expert has tensors of its own: [ffn, hidden] for gate (Mixtral's w1) and up (w3), which p3d stores transposed,
// and [hidden, ffn] for down (w2). gpt-oss has one tensor for all experts: [experts, hidden, 2 ffn], in whose last
// dimension gate and up interleave, and [experts, ffn, hidden] for down.

#include <p3d/config/hugging_face.hpp>
#include <p3d/layout/params.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::layout {

/// A tensor that a model has.
struct HuggingFaceTensor {
  std::string name;                 ///< as in a state dict: with "transformer." for GPT-2
  std::vector<std::int64_t> shape;  ///< 1 to 3 sizes
  bool wide = false;                ///< its numbers have at least 32 bits, whatever the type of the others
};

/// The place of a parameter [rows, cols]. In a matrix, element (row, col) is element (first + row, col) of the tensor,
/// or (col, first + row) where it is transposed. In a vector, element col is element first + col.
struct HuggingFacePlace {
  std::size_t tensor = 0;  ///< index into HuggingFaceLayout::tensors
  bool transposed = false;
  std::int64_t first = 0;
  /// Rows [b block, (b + 1) block) lie in tensor `tensor` + b, whose own rows begin at 0 (experts); 0: all rows lie in
  /// `tensor`.
  std::int64_t block = 0;
  /// Above 0: the blocks lie in one tensor, a matrix of so many elements each, one behind the other.
  std::int64_t block_elements = 0;
  /// Parameters that interleave in the rows of a tensor, one column each: their number, and that of this parameter.
  std::int64_t interleaved = 1, turn = 0;
  std::int64_t begin = 0;  ///< the element of the tensor from which all the others are counted

  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  /// False for the state that balances experts in training (moe.router.load): the model computes the same without it.
  bool stored() const { return tensor != nowhere; }
};

/// A tensor of one number that is the same in all models of a family. p3d computes with that number.
struct HuggingFaceConstant {
  std::string name;
  double value = 0.0;
};

/// A tensor that has the numbers of another one, `of` (an index into HuggingFaceLayout::tensors): each layer of
/// multi-token prediction has the embedding and the head of the model once more. A reader does not need it.
struct HuggingFaceCopy {
  HuggingFaceTensor tensor;
  std::size_t of = 0;
};

/// All tensors of a model, and the place of each parameter.
struct HuggingFaceLayout {
  config::ModelFamily family = config::ModelFamily::gpt2;
  std::vector<HuggingFaceTensor> tensors;      ///< in the order of the table
  std::vector<HuggingFacePlace> places;        ///< one for each row of the table
  std::vector<HuggingFaceConstant> constants;  ///< tensors that no parameter lies in
  std::vector<HuggingFaceCopy> copies;
};

/// The layout of a model of a family (config::family_of).
HuggingFaceLayout hugging_face_layout(config::ModelFamily family, config::Model const& model, ParamTable const& table);

/// True for the name of a constant that older versions saved and that no model reads (causal masks, rotary
/// frequencies).
bool is_hugging_face_buffer(std::string_view tensor);

/// Calls visit(HuggingFacePlace, Range rows, std::int64_t done) for each tensor in which some rows of a parameter lie:
/// their place, as if the parameter were that tensor alone; which rows of it they are; and how many rows came before.
template <class Visit>
void for_tensors(HuggingFacePlace const& place, Range rows, Visit&& visit) {
  if (place.block == 0) return visit(place, rows, std::int64_t{0});
  for (auto begin = rows.begin; begin < rows.end;) {
    auto const b = begin / place.block, end = std::min(rows.end, (b + 1) * place.block);
    auto part = place;
    part.block = 0;
    if (place.block_elements > 0)
      part.begin = b * place.block_elements;
    else
      part.tensor += static_cast<std::size_t>(b);
    visit(part, Range{begin - b * place.block, end - b * place.block}, begin - rows.begin);
    begin = end;
  }
}

/// A run of elements of a tensor, each `step` behind the one before, and where they go in a rectangle of the parameter
/// (row-major, `cols` wide): the first to `place`, the others each `stride` further. Where parameters are interleaved
/// `step` is above 1; else elements are neighbours.
struct ElementRun {
  std::int64_t first = 0;  ///< index in the tensor
  std::int64_t count = 0;
  std::int64_t place = 0;
  std::int64_t stride = 1;
  std::int64_t step = 1;
};

/// Calls visit(ElementRun) for all runs of the rectangle rows x cols of a parameter. `tensor_cols` is the last size of
/// the tensor.
template <class Visit>
void for_element_runs(HuggingFacePlace const& place, std::int64_t tensor_cols, Range rows, Range cols, Visit&& visit) {
  auto const height = rows.end - rows.begin, width = cols.end - cols.begin;
  if (height <= 0 || width <= 0) return;
  if (place.transposed) {
    for (std::int64_t c = 0; c < width; ++c)
      visit(ElementRun{place.begin + (cols.begin + c) * tensor_cols + place.first + rows.begin, height, c, width});
  } else if (place.interleaved > 1) {
    for (std::int64_t r = 0; r < height; ++r)
      visit(ElementRun{(rows.begin + r) * tensor_cols + cols.begin * place.interleaved + place.turn, width, r * width,
                       1, place.interleaved});
  } else if (width == tensor_cols) {
    visit(ElementRun{(place.first + rows.begin) * tensor_cols, height * width, 0, 1});
  } else {
    for (std::int64_t r = 0; r < height; ++r)
      visit(ElementRun{(place.first + rows.begin + r) * tensor_cols + cols.begin, width, r * width, 1});
  }
}

}  // namespace p3d::layout
