// SPDX-License-Identifier: Apache-2.0
#pragma once
// safetensors files: weights as Hugging Face stores them.
//
// THE FILE u64 N (little-endian); N bytes of JSON, which may end in spaces; then the data. The JSON is
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "text"}}
// Offsets count from the start of the data; the tensors cover it exactly. Numbers are row-major and little-endian. (The
// format: the README of the library safetensors.)
//
// A model is one file, model.safetensors, or several with model.safetensors.index.json, whose weight_map says which
// file holds which tensor.

#include <p3d/io/checkpoint.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::io {

/// Types of weights. A file may hold others (I64, BOOL, F8_E4M3, ...): these are described but cannot be read.
enum class TensorType { f64, f32, f16, bf16 };
char const* name(TensorType type);     ///< the dtype in a file: "F32", ...
std::size_t size_of(TensorType type);  ///< bytes of one number

/// One tensor of a file: what it is and where its bytes are.
struct Tensor {
  std::string name;
  std::string dtype;                ///< type as the file names it: "BF16"
  std::optional<TensorType> type;   ///< type of weights; empty for other dtypes
  std::vector<std::int64_t> shape;  ///< empty: one number
  std::size_t file = 0;             ///< index into Safetensors::files
  std::int64_t offset = 0;          ///< bytes from the start of its file
  std::int64_t bytes = 0;

  std::int64_t elements() const;
  bool operator==(Tensor const&) const = default;
};

/// The text of a shape, "[2, 3]".
std::string shape_text(std::vector<std::int64_t> const& shape);

/// The description of one file, or of all files of a model, without their numbers.
struct Safetensors {
  std::vector<std::string> files;
  std::map<std::string, Tensor, std::less<>> tensors;

  /// The tensor of this name, or null when there is none.
  Tensor const* find(std::string_view tensor) const;
};

/// Reads the header of a file. Throws base::Error (bad_input) that names the file, and the tensor where it is one: for
/// a header beyond the file or 100 MB, text that is not the JSON above, an unknown dtype, a shape whose bytes are not
/// those of its offsets, offsets outside the data, holes and overlaps. Allocates memory in proportion to the header,
/// never to the sizes that it claims.
Safetensors read_safetensors(std::string const& path);
/// Reads the headers of all files of a model. Also throws unless every tensor of the index is in its file and no other
/// one, and no file is missing.
Safetensors read_safetensors_folder(std::string const& folder);

/// Reads the numbers of tensors, a piece at a time. Each piece is read from the file with pread; files are opened at
/// their first use.
class TensorReader {
public:
  explicit TensorReader(Safetensors const& files);  ///< `files` must outlive the reader
  ~TensorReader();
  /// Reads `count` numbers from element `first` on (row-major), as float or double in host memory. Conversions to
  /// double, and from F16, BF16 and F32 to float, do not round; F64 to float rounds to nearest.
  void read(Tensor const& tensor, std::int64_t first, std::int64_t count, Element as, void* out);

private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a model. Every byte is determined by its tensors: they are in the given order, the metadata are {"format":
/// "pt"}, and the header is padded with spaces so that the data start at a multiple of 8. A new file begins where one
/// would be longer than `max_bytes`; more than one file are model-00001-of-00002.safetensors, ... and an index. Files
/// have the ending .part until commit(). Any number of processes write pieces, each through an object of its own.
class SafetensorsWriter {
public:
  struct Item {
    std::string name;
    std::vector<std::int64_t> shape;
    bool wide = false;  ///< F32 where the others are F16 or BF16
  };
  SafetensorsWriter(std::string folder, std::vector<Item> items, TensorType type, std::int64_t max_bytes);
  ~SafetensorsWriter();
  /// Makes the files with their headers and full length. One process calls it, before any write().
  void create();
  /// Writes `count` numbers of item `item`, from element `first` on. F16 and BF16 are rounded to nearest, ties to even;
  /// a double is rounded once, not twice by way of a float.
  void write(std::size_t item, std::int64_t first, std::int64_t count, Element from, void const* numbers);
  /// Flushes what this object wrote to disk.
  void flush();
  /// The checksum of each item's numbers that this object wrote. The sums over all processes are those of the items.
  std::vector<std::uint64_t> const& written() const;
  /// The checksum of each item's numbers in the files, of process `part` of `parts`, which share the reading. The sums
  /// over all are those of written() where no write was lost. Call it after flush() of all and before commit().
  std::vector<std::uint64_t> read_back(int part, int parts) const;
  /// Gives the files their names, the index last. One process calls it, after flush() of all.
  void commit();
  /// Removes the files that create() made and commit() has not renamed.
  void discard() noexcept;
  std::vector<std::string> const& files() const;  ///< final paths, the index included

private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace p3d::io
