// SPDX-License-Identifier: Apache-2.0
// Reads a model in Hugging Face form. The tensors of the files must be just those that config.json implies: a missing
// one, an unknown one or another shape is an error, since p3d would otherwise compute something else without a word.
// layout::hugging_face_layout says where each parameter lies; GPT-2 stores its matrices as [in, out], p3d as [out, in],
// so those are transposed while they are read. Example: GPT-2's h.0.attn.c_attn.weight [768, 2304] holds q, k and v of
// layer 0.
#include <p3d/io/model_weights.hpp>

#include "checksum.hpp"
#include "slices.hpp"
#include "together.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <utility>

namespace p3d::io {

namespace {

constexpr std::string_view gpt2_prefix = "transformer.", output_layer = "lm_head.weight";

base::Error refused(std::string expected, std::string found, std::string where, std::string fix) {
  return base::Error(
      {.expected = std::move(expected), .found = std::move(found), .where = std::move(where), .fix = std::move(fix)},
      base::ExitCode::bad_input);
}

constexpr char const* complete = "copy the whole folder again from where it comes from";

/// The parameters of the model. The number of layers and experts in config.json is believed only as far as there are
/// tensors (a layer has several), so that a damaged number allocates nothing large.
layout::ParamTable table_of(config::HuggingFaceModel const& read, Safetensors const& files, std::string const& folder) {
  auto const tensors = static_cast<std::int64_t>(files.tensors.size());
  auto const& m = read.model;
  bool const joined = read.family == config::ModelFamily::gpt_oss;  // one tensor for all experts
  if (m.all_layers() > tensors || (!joined && m.moe_layers() * m.moe.experts > tensors)) {
    auto const with = m.moe.on() && !joined ? fmt::format(" and their {} experts", m.moe.experts) : "";
    throw refused(fmt::format("tensors of the {} layers{} of config.json", m.all_layers(), with),
                  fmt::format("{} tensors", tensors), folder, complete);
  }
  config::Config c;
  c.model = read.model;
  return layout::make_param_table(c);
}

/// Writes `in` [rows, cols] transposed to `out` [cols, rows], whose rows are `stride` elements apart.
template <class T>
void transpose(void const* in, std::int64_t rows, std::int64_t cols, void* out, std::int64_t stride) {
  auto const* const from = static_cast<T const*>(in);
  auto* const to = static_cast<T*>(out);
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) to[c * stride + r] = from[r * cols + c];
  }
}

/// The tensor of this name. Older files of GPT-2 leave the prefix out.
Tensor const* find(Safetensors const& files, std::string_view name) {
  auto const* tensor = files.find(name);
  return tensor || !name.starts_with(gpt2_prefix) ? tensor : files.find(name.substr(gpt2_prefix.size()));
}

}  // namespace

namespace {

template <class T>
void subtract(std::span<T> from, double offset) {
  for (auto& x : from) x -= static_cast<T>(offset);
}

}  // namespace

ModelWeights::ModelWeights(std::string folder)
    : folder_(std::move(folder)),
      config_(config::read_hugging_face_folder(folder_)),
      files_(read_safetensors_folder(folder_)),
      table_(table_of(config_, files_, folder_)),
      layout_(layout::hugging_face_layout(config_.family, config_.model, table_)),
      reader_(files_) {
  require_tensors();
  require_tied();
}

Tensor const& ModelWeights::tensor_of(layout::HuggingFaceTensor const& wanted) const {
  auto const* tensor = find(files_, wanted.name);
  if (!tensor)
    throw refused(fmt::format("the tensor {} {}", wanted.name, shape_text(wanted.shape)), "none", folder_, complete);
  auto const where = fmt::format("{}, tensor {}", files_.files[tensor->file], tensor->name);
  if (tensor->shape != wanted.shape) {
    throw refused(fmt::format("shape {}, as config.json says", shape_text(wanted.shape)), shape_text(tensor->shape),
                  where, "use the config.json that belongs to these weights");
  }
  if (!tensor->type)
    throw refused("weights of type F64, F32, F16 or BF16", tensor->dtype, where, "use a model that is not quantized");
  return *tensor;
}

bool ModelWeights::is_constant(std::string const& name) {
  auto const& all = layout_.constants;
  auto const it = std::find_if(all.begin(), all.end(), [&](auto const& c) { return c.name == name; });
  if (it == all.end()) return false;
  auto const& tensor = *files_.find(name);
  constexpr double rounding = 1.0 / 256;  // of the widest of the types, bf16
  double found = 0.0;
  bool const one = tensor.type && tensor.elements() == 1;
  if (one) reader_.read(tensor, 0, 1, Element::float64, &found);
  if (one && std::fabs(found - it->value) <= rounding * std::fabs(it->value)) return true;
  throw refused(fmt::format("{}, the number of all models of the family {}", it->value, to_string(config_.family)),
                one ? fmt::format("{}", found) : fmt::format("{} {}", tensor.dtype, shape_text(tensor.shape)),
                fmt::format("{}, tensor {}", files_.files[tensor.file], name),
                "p3d computes with that number alone: use a model that has it");
}

void ModelWeights::require_tensors() {
  std::set<std::string> known;
  for (auto const& t : layout_.tensors) known.insert(tensor_of(t).name);
  for (auto const& copy : layout_.copies) known.insert(copy.tensor.name);
  for (auto const& [name, tensor] : files_.tensors) {
    bool const tied_output = name == output_layer && config_.model.tied_embeddings;
    if (known.contains(name) || tied_output || layout::is_hugging_face_buffer(name)) continue;
    if (is_constant(name)) continue;
    throw refused(fmt::format("only tensors of a {} as config.json describes it", to_string(config_.family)),
                  fmt::format("{} {}", name, shape_text(tensor.shape)), files_.files[tensor.file],
                  "p3d would leave this tensor out, and compute something else: use a model without it");
  }
}

void ModelWeights::require_tied() {
  if (auto const* output = files_.find(output_layer); output && config_.model.tied_embeddings)
    require_same(*output, tensor_of(layout_.tensors.front()), "config.json ties them (tie_word_embeddings)",
                 "set tie_word_embeddings to false in config.json if the two are meant to differ");
  for (auto const& copy : layout_.copies)
    if (auto const* stored = files_.find(copy.tensor.name))
      require_same(*stored, tensor_of(layout_.tensors[copy.of]),
                   "layers of multi-token prediction share embedding and head with the model",
                   "remove num_nextn_predict_layers from config.json, and the tensors of these layers");
}

void ModelWeights::require_same(Tensor const& copy, Tensor const& original, char const* why, char const* fix) {
  auto const differ = [&](std::string const& how) {
    return refused(fmt::format("{} like {}: {}", copy.name, original.name, why), how, files_.files[copy.file], fix);
  };
  if (copy.shape != original.shape || !copy.type) throw differ(shape_text(copy.shape));
  constexpr std::int64_t piece = 1 << 18;
  auto const n = original.elements();
  std::vector<double> a(static_cast<std::size_t>(std::min(piece, n))), b(a.size());
  for (std::int64_t i = 0; i < n; i += piece) {
    auto const count = std::min(piece, n - i);
    reader_.read(original, i, count, Element::float64, a.data());
    reader_.read(copy, i, count, Element::float64, b.data());
    if (std::memcmp(a.data(), b.data(), static_cast<std::size_t>(count) * sizeof(double)) != 0)
      throw differ("other numbers");
  }
}

Element ModelWeights::element() const {
  bool wide = false;
  for (auto const& t : layout_.tensors) wide = wide || tensor_of(t).type == TensorType::f64;
  return wide ? Element::float64 : Element::float32;
}

void ModelWeights::read(std::string const& parameter, layout::Range rows, layout::Range cols, Element as, void* out) {
  auto const& spec = table_.find(parameter);
  auto const& all = layout_.places[static_cast<std::size_t>(&spec - table_.specs().data())];
  layout::for_tensors(all, rows, [&](layout::HuggingFacePlace const& place, layout::Range some, std::int64_t done) {
    read_part(place, some, cols, as,
              static_cast<char*>(out) + static_cast<std::size_t>(done * cols.size()) * size_of(as));
  });
  if (!parameter.ends_with(".moe.router.bias")) return;
  double const offset = common_offset(tensor_of(layout_.tensors[all.tensor]));
  auto const count = static_cast<std::size_t>(rows.size() * cols.size());
  if (as == Element::float32)
    subtract(std::span(static_cast<float*>(out), count), offset);
  else
    subtract(std::span(static_cast<double*>(out), count), offset);
}

double ModelWeights::common_offset(Tensor const& biases) {
  std::vector<double> all(static_cast<std::size_t>(biases.elements()));
  reader_.read(biases, 0, biases.elements(), Element::float64, all.data());
  double mean = 0;
  for (auto b : all) mean += b / static_cast<double>(all.size());
  mean = static_cast<double>(static_cast<float>(mean));
  // A number of fp32 within a factor of 2 of another one has an exact difference to it (Sterbenz).
  for (auto b : all)
    if (!(b / mean >= 0.5 && b / mean <= 2.0)) return 0;
  return mean;
}

void ModelWeights::read_run(Tensor const& tensor, layout::ElementRun const& run, Element as, char* to) {
  if (run.step == 1) return reader_.read(tensor, run.first, run.count, as, to);
  auto const bytes = size_of(as);
  auto const span = (run.count - 1) * run.step + 1;
  span_.resize(static_cast<std::size_t>(span) * bytes);
  reader_.read(tensor, run.first, span, as, span_.data());
  for (std::int64_t i = 0; i < run.count; ++i)
    std::memcpy(to + static_cast<std::size_t>(i) * bytes, span_.data() + static_cast<std::size_t>(i * run.step) * bytes,
                bytes);
}

void ModelWeights::read_part(layout::HuggingFacePlace const& place, layout::Range rows, layout::Range cols, Element as,
                             char* to) {
  auto const& wanted = layout_.tensors[place.tensor];
  auto const& tensor = tensor_of(wanted);
  bool const vector = wanted.shape.size() == 1;
  auto where = place;
  if (vector) {  // [1, cols] at `first` of the tensor
    cols = {cols.begin + place.first, cols.end + place.first};
    where.first = 0;
  }
  auto const bytes = size_of(as);
  if (!place.transposed) {
    layout::for_element_runs(where, wanted.shape.back(), rows, cols, [&](layout::ElementRun const& run) {
      read_run(tensor, run, as, to + static_cast<std::size_t>(run.place) * bytes);
    });
    return;
  }
  // A few columns at a time are read and transposed: then whole cache lines of the result are written.
  constexpr std::int64_t block = 32;
  run_.resize(static_cast<std::size_t>(block * rows.size()) * bytes);
  for (auto begin = cols.begin; begin < cols.end; begin += block) {
    layout::Range const some{begin, std::min(begin + block, cols.end)};
    layout::for_element_runs(where, wanted.shape.back(), rows, some, [&](layout::ElementRun const& run) {
      reader_.read(tensor, run.first, run.count, as,
                   run_.data() + static_cast<std::size_t>(run.place * rows.size()) * bytes);
    });
    auto* const first = to + static_cast<std::size_t>(begin - cols.begin) * bytes;
    if (as == Element::float32)
      transpose<float>(run_.data(), some.size(), rows.size(), first, cols.size());
    else
      transpose<double>(run_.data(), some.size(), rows.size(), first, cols.size());
  }
}

namespace {

constexpr std::string_view group = "parameters/";

/// True for the state that balances experts. It is no weight of a model: no folder has it, and a run begins with its
/// own.
bool is_balance(CheckpointPart const& part) { return part.array.ends_with(".moe.router.load"); }

/// Requires that the parameters of the run are those of the folder. A run with fewer learned positions takes the first
/// ones.
void require_shapes(ModelWeights const& weights, std::vector<CheckpointPart> const& parts) {
  for (auto const& part : parts) {
    P3D_REQUIRE(part.array.starts_with(group), "weights go into parameters");
    if (is_balance(part)) continue;
    auto const& spec = weights.table().find(part.array.substr(group.size()));
    bool const fewer = spec.name == "embed.position.weight" && part.global_rows <= spec.rows;
    P3D_REQUIRE(part.global_cols == spec.cols && (fewer || part.global_rows == spec.rows),
                "the run has the model of the folder");
  }
}

}  // namespace

std::uint64_t load_weights(comm::Communicator& world, ModelWeights& weights, Element element,
                           std::vector<CheckpointPart> const& parts, std::int64_t buffer_bytes) {
  require_shapes(weights, parts);
  auto const& specs = weights.table().specs();
  std::vector<std::uint64_t> sums(specs.size(), 0);
  auto const bytes = size_of(element);
  std::vector<char> buffer;
  auto const failure = attempt([&] {
    for (auto const& part : parts) {
      if (is_balance(part)) continue;
      auto const name = part.array.substr(group.size());
      auto& sum = sums[static_cast<std::size_t>(&weights.table().find(name) - specs.data())];
      auto const own = share(part, bytes, part.replicas->rank(), part.replicas->size());
      auto const step = rows_in(part, bytes, buffer_bytes);
      for (std::int64_t row = 0; row < part.rows && part.cols > 0;) {
        // Pieces end where this rank's share begins or ends: it adds the checksum of its share alone.
        auto end = std::min(row + step, part.rows);
        for (auto const edge : {own.begin, own.end})
          if (row < edge) end = std::min(end, edge);
        auto const count = (end - row) * part.cols;
        buffer.resize(static_cast<std::size_t>(count) * bytes);
        apart([&] {
          weights.read(name, {part.row_begin + row, part.row_begin + end}, {part.col_begin, part.col_begin + part.cols},
                       element, buffer.data());
        });
        part.copy_in(row * part.cols, count, buffer.data());
        if (part.writes && row >= own.begin && end <= own.end) {
          for_runs(part, {row, end}, [&](std::int64_t index, std::int64_t n, std::int64_t place) {
            sum += checksum(buffer.data() + static_cast<std::size_t>(place) * bytes, n,
                            static_cast<std::uint64_t>(index), bytes);
          });
        }
        row = end;
      }
    }
  });
  if (auto wrong = first_error(world, failure)) base::refuse(*wrong);
  world.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), comm::Type::uint64, comm::Reduction::sum)
      .wait();
  Checkpoint as_file;
  for (std::size_t i = 0; i < specs.size(); ++i)
    as_file.arrays.push_back({std::string(group) + specs[i].name, specs[i].rows, specs[i].cols, 0, sums[i]});
  return content_hash(as_file, false);
}

}  // namespace p3d::io
