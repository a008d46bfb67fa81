// SPDX-License-Identifier: Apache-2.0
// Writes the parameters of a checkpoint as a model in Hugging Face form. Every rank copies its rows of every parameter,
// a buffer at a time: it reads them from the checkpoint, adds them to the checksum, and writes them to their places in
// the tensors (layout::hugging_face_layout says where). The files get their names only after the checksums of all ranks
// are right. Example: attn.q, attn.k and attn.v of GPT-2 are three arrays of the checkpoint and columns of one tensor,
// c_attn.weight.
#include <p3d/io/model_export.hpp>

#include "checksum.hpp"
#include "posix_file.hpp"
#include "together.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/float16.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/config/hugging_face.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/layout/hugging_face.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

namespace p3d::io {

namespace {

namespace fs = std::filesystem;

constexpr char const* config_name = "config.json";

/// The smallest size of a number that rounds to infinity: halfway between the largest number of the type and the next
/// that it cannot hold.
double rounds_to_infinity(TensorType type) {
  switch (type) {
    case TensorType::f64: break;
    case TensorType::f32: return 0x1.ffffffp127;
    case TensorType::f16: return base::float16_rounds_to_infinity;
    case TensorType::bf16: return base::bfloat16_rounds_to_infinity;
  }
  return std::numeric_limits<double>::infinity();
}

/// Throws unless the arrays of the file are the parameters of the model.
void require_table(Checkpoint const& file, layout::ParamTable const& table) {
  auto const& specs = table.specs();
  for (std::size_t i = 0; i < std::max(specs.size(), file.table.size()); ++i) {
    bool const both = i < specs.size() && i < file.table.size();
    if (both && file.table[i].name == specs[i].name && file.table[i].rows == specs[i].rows &&
        file.table[i].cols == specs[i].cols)
      continue;
    auto const& name = i < specs.size() ? specs[i].name : file.table[i].name;
    base::refuse({.expected = fmt::format("the parameters that the model in /input has ({})", name),
                  .found = "others in /table",
                  .where = file.path,
                  .fix = "export a checkpoint that p3d wrote"});
  }
}

/// Throws when a file beside the weights has the name of another one or of the weights, or a name that leads to another
/// folder.
void require_names(ModelFiles const& files) {
  for (auto const& f : files) {
    if (base::is_file_name(f.name) && f.name.find(".safetensors") == std::string::npos && find(files, f.name) == &f)
      continue;
    base::refuse({.expected = "files beside the weights, each with a name of its own",
                  .found = f.name,
                  .where = "the files of the model",
                  .fix = "export a checkpoint that p3d wrote"});
  }
}

/// Throws when the folder holds a model or one of these files: an older model would be mixed with this one, and no file
/// is replaced. Unfinished files of an export that was killed are deleted.
void require_free(std::string const& folder, ModelFiles const& files) {
  make_folder(folder);
  std::vector<fs::path> unfinished;
  for (auto const& entry : fs::directory_iterator(folder)) {
    auto const name = entry.path().filename().string();
    if (name.ends_with(".safetensors.part")) {
      unfinished.push_back(entry.path());
      continue;
    }
    if (name != "config.json" && name.find(".safetensors") == std::string::npos && !find(files, name)) continue;
    base::refuse({.expected = "a folder without a model",
                  .found = name,
                  .where = folder,
                  .fix = "name another folder, or delete the model that is there"});
  }
  for (auto const& path : unfinished) fs::remove(path);
}

/// Copies the share of one rank from the checkpoint to the tensors.
class Exporter {
public:
  Exporter(Checkpoint const& file, layout::HuggingFaceLayout const& layout, SafetensorsWriter& writer,
           ExportOptions const& options)
      : file_(file), layout_(layout), writer_(writer), options_(options) {}

  /// Copies rows of a parameter. Returns what they add to the parameter's checksum.
  std::uint64_t copy(std::size_t parameter, layout::Range rows) {
    auto const& array = file_.arrays[parameter];
    auto const type = file_.header.element;
    auto const bytes = static_cast<std::int64_t>(size_of(type));
    auto const step = std::max<std::int64_t>(1, options_.buffer_bytes / (array.cols * bytes));
    std::uint64_t sum = 0;
    for (auto row = rows.begin; row < rows.end; row += step) {
      layout::Range const piece{row, std::min(row + step, rows.end)};
      auto const count = piece.size() * array.cols;
      if (!input_) input_.emplace(file_.path, PosixFile::Mode::read);
      buffer_.resize(static_cast<std::size_t>(count * bytes));
      input_->read(array.offset + piece.begin * array.cols * bytes, buffer_.data(), buffer_.size());
      sum += checksum(buffer_.data(), count, static_cast<std::uint64_t>(piece.begin * array.cols), size_of(type));
      require_range(array, count);
      if (layout_.places[parameter].interleaved > 1)
        write_interleaved(parameter, piece);
      else
        write(parameter, piece, {0, array.cols});
    }
    return sum;
  }

private:
  /// Writes rows x cols of a parameter from buffer_. A parameter may be stored in several tensors, or in none (tied).
  void write(std::size_t parameter, layout::Range rows, layout::Range cols) {
    if (!layout_.places[parameter].stored()) return;
    auto const bytes = static_cast<std::int64_t>(size_of(file_.header.element));
    layout::for_tensors(layout_.places[parameter], rows,
                        [&](layout::HuggingFacePlace const& place, layout::Range some, std::int64_t done) {
                          write_part(place, some, cols, buffer_.data() + done * cols.size() * bytes);
                        });
  }

  /// Writes rows of a tensor in which several parameters interleave, when the first of them comes, whose numbers are in
  /// buffer_. The others follow it in the table.
  void write_interleaved(std::size_t first, layout::Range rows) {
    auto const& place = layout_.places[first];
    if (place.turn > 0) return;
    auto const type = file_.header.element;
    auto const bytes = size_of(type);
    auto const cols = file_.arrays[first].cols, step = place.interleaved;
    auto const count = static_cast<std::size_t>(rows.size() * cols);
    run_.resize(count * static_cast<std::size_t>(step) * bytes);
    for (std::int64_t turn = 0; turn < step; ++turn) {
      auto const parameter = first + static_cast<std::size_t>(turn);
      auto const& other = layout_.places.at(parameter);
      P3D_REQUIRE(other.tensor == place.tensor && other.turn == turn, "parameters that interleave are neighbours");
      if (turn > 0)
        input_->read(file_.arrays[parameter].offset + rows.begin * cols * static_cast<std::int64_t>(bytes),
                     buffer_.data(), buffer_.size());
      for (std::size_t i = 0; i < count; ++i)
        std::memcpy(run_.data() + (i * static_cast<std::size_t>(step) + static_cast<std::size_t>(turn)) * bytes,
                    buffer_.data() + i * bytes, bytes);
    }
    writer_.write(place.tensor, rows.begin * cols * step, static_cast<std::int64_t>(count) * step, type, run_.data());
  }

  /// Writes the rectangle rows x cols of one tensor; its numbers are at `data`, row-major.
  void write_part(layout::HuggingFacePlace const& place, layout::Range rows, layout::Range cols, char const* data) {
    auto const& shape = layout_.tensors[place.tensor].shape;
    auto const type = file_.header.element;
    auto const bytes = size_of(type);
    if (shape.size() == 1) {
      writer_.write(place.tensor, place.first, cols.size(), type, data);
      return;
    }
    for (std::size_t i = 0; i < layout_.copies.size(); ++i) {
      if (layout_.copies[i].of != place.tensor) continue;
      P3D_REQUIRE(cols.size() == shape.back() && !place.transposed, "a tensor with copies is written by whole rows");
      writer_.write(layout_.tensors.size() + i, (place.first + rows.begin) * shape.back(), rows.size() * shape.back(),
                    type, data);
    }
    layout::for_element_runs(place, shape.back(), rows, cols, [&](layout::ElementRun const& run) {
      auto const* from = data + static_cast<std::size_t>(run.place) * bytes;
      if (run.stride != 1) {
        run_.resize(static_cast<std::size_t>(run.count) * bytes);
        for (std::int64_t i = 0; i < run.count; ++i)
          std::memcpy(run_.data() + static_cast<std::size_t>(i) * bytes,
                      from + static_cast<std::size_t>(i * run.stride) * bytes, bytes);
        from = run_.data();
      }
      writer_.write(place.tensor, run.first, run.count, type, from);
    });
  }

  /// Throws when a number of buffer_ would become infinite by rounding to the exported type.
  void require_range(CheckpointArray const& array, std::int64_t count) const {
    if (options_.type == TensorType::f64 ||
        (options_.type == TensorType::f32 && file_.header.element == Element::float32))
      return;
    double const limit = rounds_to_infinity(options_.type);
    auto const fits = [&](auto const* numbers) {
      return std::all_of(numbers, numbers + count, [&](auto x) {
        auto const size = std::fabs(static_cast<double>(x));
        return !(size >= limit) || std::isinf(size);
      });
    };
    if (file_.header.element == Element::float32 ? fits(reinterpret_cast<float const*>(buffer_.data()))
                                                 : fits(reinterpret_cast<double const*>(buffer_.data())))
      return;
    base::refuse(
        {.expected = fmt::format("numbers below {:g}, which {} can hold", limit, torch_name(options_.type)),
         .found = "a larger one in " + array.name,
         .where = file_.path,
         .fix = options_.type == TensorType::f16 ? "export with --dtype bf16 or fp32" : "export with --dtype fp64"});
  }

  Checkpoint const& file_;
  layout::HuggingFaceLayout const& layout_;
  SafetensorsWriter& writer_;
  ExportOptions const& options_;
  std::optional<PosixFile> input_;
  std::vector<char> buffer_, run_;
};

/// Reads all files again and compares. On some file systems the last of two hosts that write to one page wins. Returns
/// the same on every rank. Collective.
std::optional<base::ErrorText> read_back(comm::Communicator& world, SafetensorsWriter const& writer,
                                         std::string const& folder) {
  auto written = writer.written();
  auto const items = static_cast<std::int64_t>(written.size());
  std::vector<std::uint64_t> read(written.size(), 0);
  auto const failure = attempt_apart([&] { read = writer.read_back(world.rank(), world.size()); });
  world.all_reduce(written.data(), items, comm::Type::uint64, comm::Reduction::sum).wait();
  world.all_reduce(read.data(), items, comm::Type::uint64, comm::Reduction::sum).wait();
  if (auto wrong = first_error(world, failure)) return wrong;
  if (read == written) return {};
  return base::ErrorText{.expected = "the numbers on disk as they were written",
                         .found = "other numbers",
                         .where = folder,
                         .fix = "export with the ranks of one node, or into a folder of another file system"};
}

/// Throws the error of the first rank that has one, on every rank. Collective.
void throw_first(comm::Communicator& world, std::optional<base::ErrorText> const& mine, base::ExitCode code) {
  if (auto wrong = first_error(world, mine)) throw base::Error(*wrong, code);
}

}  // namespace

char const* torch_name(TensorType type) {
  switch (type) {
    case TensorType::f64: return "float64";
    case TensorType::f32: return "float32";
    case TensorType::f16: return "float16";
    case TensorType::bf16: return "bfloat16";
  }
  return "?";
}

std::vector<std::string> export_model(comm::Communicator& world, Checkpoint const& checkpoint,
                                      config::Model const& model, std::string const& folder,
                                      ExportOptions const& options) {
  config::Config c;
  c.model = model;
  auto const table = layout::make_param_table(c);
  auto const layout = layout::hugging_face_layout(config::family_of(model, options.family), model, table);
  require_table(checkpoint, table);
  std::vector<SafetensorsWriter::Item> items;
  for (auto const& t : layout.tensors) items.push_back({t.name, t.shape, t.wide});
  for (auto const& constant : layout.constants) items.push_back({constant.name, {}, false});
  for (auto const& copy : layout.copies) items.push_back({copy.tensor.name, copy.tensor.shape});
  SafetensorsWriter writer(folder, std::move(items), options.type, options.shard_bytes);

  bool const root = world.rank() == 0;
  ModelFiles files;
  if (root) files = options.files;
  if (root && !find(files, config_name))
    files.insert(files.begin(),
                 {config_name, config::write_hugging_face(model, torch_name(options.type), -1, options.family)});
  throw_first(world, attempt_apart([&] {
                if (root) require_names(files), require_free(folder, files);
              }),
              base::ExitCode::bad_input);
  auto const created = attempt_apart([&] {
    if (root) writer.create();
  });
  if (created && root) writer.discard();
  throw_first(world, created, base::ExitCode::run_failed);
  std::vector<std::uint64_t> sums(table.specs().size(), 0);
  auto failure = attempt_apart([&] {
    Exporter exporter(checkpoint, layout, writer, options);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      auto const& a = checkpoint.arrays[i];
      auto const bytes = static_cast<std::int64_t>(size_of(checkpoint.header.element));
      sums[i] = exporter.copy(i, layout::replica_share(a.rows, a.cols, bytes, world.rank(), world.size()));
    }
    auto number = layout.tensors.size();
    for (auto const& constant : layout.constants) {
      if (root) writer.write(number, 0, 1, Element::float64, &constant.value);
      ++number;
    }
    writer.flush();
  });
  failure = first_error(world, failure);
  world.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), comm::Type::uint64, comm::Reduction::sum)
      .wait();
  for (std::size_t i = 0; i < sums.size() && !failure; ++i) {
    auto const& a = checkpoint.arrays[i];
    if (sums[i] == a.checksum) continue;
    failure = base::ErrorText{
        .expected = fmt::format("{} with checksum {:016x}", a.name, a.checksum),
        .found = fmt::format("checksum {:016x}: the numbers were changed after they were written", sums[i]),
        .where = checkpoint.path,
        .fix = "use an older checkpoint, or copy this one again"};
  }
  if (!failure) failure = read_back(world, writer, folder);
  if (!failure && root) {
    failure = attempt_apart([&] {
      writer.commit();
      for (auto const& f : files) write_text_atomically((fs::path(folder) / f.name).string(), f.bytes);
    });
  }
  if (failure && root) writer.discard();
  throw_first(world, failure, base::ExitCode::bad_input);
  auto out = writer.files();
  for (auto const& f : files) out.push_back((fs::path(folder) / f.name).string());
  return out;
}

}  // namespace p3d::io
