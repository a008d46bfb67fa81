// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints: one HDF5 file of global arrays. Nothing in it depends on the layout that wrote it.
//
// THE FILE (every HDF5 tool reads it: h5dump, h5py, ...)
//
//   user block     plain text before the HDF5 signature: the seal. HDF5 skips it; `head -n 5 FILE` shows it.
//   /              attributes: format "p3d checkpoint", format_version, p3d_version, step, tokens, samples (position of
//                  the sampler: number of the next global sample), seed, random (how every random number follows from
//                  seed, purpose and number: there is no other random state), data_hash, data_order (below), precision,
//                  layout (this text), and, when the run began with a file (checkpoint.resume), origin ("weights HASH
//                  of FILE (step N)")
//   /input         string: the complete input (TOML) of the run
//   /tokenizer     the bytes of the file of the run's tokenizer, where it has one of at most 32 MiB. Then / also has
//                  the attributes tokenizer (name of the file), tokenizer_pattern, tokenizer_hash (xxHash64 of the
//                  bytes) and tokenizer_end (the token that ends a document; -1: none)
//   /table         one record for each parameter in model order: name, rows (0: a vector), cols, layer
//                  (-1: embedding side), decay, unit
//   /parameters/<name>      the global array of a parameter, float32 or float64: matrices [out, in], vectors [n]
//   /first_moment/<name>    the optimizer's moments, arrays of the same shapes (AdamW; none for SGD)
//   /second_moment/<name>
//   /previous_weights/<name>  the weights before the newest, where gradients are late (optimizer.delay), and in
//                             /previous_weights.<k>/<name> those k updates before; the last of these groups has of
//                             each parameter the version that its layer reads next (pipeline.delays)
//   /applied_gradient/<name>, /worker_share.V/<name>  what comm.compress = "topk" remembers: the gradient that was
//                             applied last, and the share of worker V
//   /low_rank_factor/<name>, /worker_residual.V/<name>  what comm.compress = "powersgd" remembers: factors, arrays
//                             [r, cols], and what worker V did not send. / has the attribute low_rank (r)
//
// data_order is the version of the order of samples: 2. Files from before it was stored have none, and count as 1:
// there data.shuffle = "documents" is what "whole_documents" is now, and tokens counts every sample as one of full
// length.
//
// Arrays are contiguous and uncompressed; padding of a layout (vocabulary) is not stored, tied parameters are stored
// once. Each array has the attributes `checksum` (below) and `unit` ("1", "1/parameter": the loss is a number).
//
// CHECKSUM of an array: the sum modulo 2^64, over its elements, of mix((i + 1) * 0x9e3779b97f4a7c15 ^ bits), where i is
// the element's row-major index, bits its IEEE bit pattern as an unsigned integer and mix the finaliser of splitmix64
// (z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31). A sum does not depend
// on who adds which part; mix is a bijection, so a single changed element always changes it.
//
// SEAL: the size of the file, the byte ranges of the arrays ("extents"), the hash of all bytes outside them and of the
// user block itself (the same sum over little-endian 8-byte words). It is written last. A reader checks that its
// extents are just the arrays: every byte of the file is under the seal or under a checksum. Files are written with the
// HDF5 library and read without it (src/io/hdf5_objects.hpp says why).
//
// A file is written as NAME.part, flushed to disk, sealed, flushed, and only then renamed.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/optimizer_state.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::io {

/// The type of a stored number. A whole file has one: float32, or float64 for a run in fp64.
enum class Element { float32, float64 };
/// Bytes of one number: 4 or 8.
std::size_t size_of(Element element);
/// The name that stands in the attribute `precision`: "fp32" or "fp64".
char const* name(Element element);
/// The Element that stores master weights and state of a run with this precision.
constexpr Element element_of(config::Precision precision) {
  return precision == config::Precision::fp64 ? Element::float64 : Element::float32;
}

/// The tokenizer of a run. Without a name every byte is a token.
struct StoredTokenizer {
  static constexpr std::int64_t largest_file = std::int64_t{32} << 20;  ///< bytes; a larger file is not carried
  std::string name;                                                     ///< name of the file, without folders
  std::string pattern;                                                  ///< data.tokenizer_pattern
  std::uint64_t hash = 0;                                               ///< text::Tokenizer::hash
  std::int64_t end = -1;                                                ///< text::Tokenizer::end_of_document
  std::string file;  ///< the bytes of the file; empty when it is larger than largest_file
  bool operator==(StoredTokenizer const&) const = default;
};

/// The run that wrote a checkpoint: its position, its input, its data and its origin.
struct CheckpointHeader {
  std::int64_t step = 0;     ///< optimizer steps done
  std::int64_t tokens = 0;   ///< inputs of all samples that were trained on
  std::int64_t samples = 0;  ///< number of the next global sample
  std::uint64_t seed = 0;
  std::uint64_t data_hash = 0;                          ///< data::TokenSource::hash
  static constexpr std::int64_t newest_data_order = 2;  ///< the version that this p3d writes
  std::int64_t data_order = newest_data_order;          ///< version of the order of samples; 1: the file does not say
  Element element = Element::float32;
  std::string p3d_version;
  std::string input;       ///< the whole input of the run, as config::canonical_toml writes it
  std::string loss_scale;  ///< optim::stored_loss_scale; empty: nothing to keep
  /// Where late gradients' versions of the weights were rounded at random, and a start or a skipped update made several
  /// of them equal: the updates that made the others, one each. -1: not kept.
  std::int64_t versions_made = -1;
  StoredTokenizer tokenizer;
  /// The begin of the run: "weights 0123456789abcdef of FILE (step N)" or "state ..."; empty: the seed.
  std::string origin;

  bool operator==(CheckpointHeader const&) const = default;
};

/// One row of /table: a parameter, in the model's order.
struct TableRow {
  std::string name;
  std::int64_t rows = 1;  ///< 1 with `vector`: the array has one dimension
  std::int64_t cols = 1;  ///< a vector [n] has n here
  int layer = 0;          ///< -1: embedding side; the number of layers: head side
  bool decay = false;     ///< weight decay applies
  bool vector = false;    ///< the array has one dimension, [cols]

  bool operator==(TableRow const&) const = default;
};

/// One array of the file: a parameter, or the optimizer's state of one.
struct CheckpointArray {
  std::string name;  ///< "parameters/layers.0.attn.q.weight"
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t offset = 0;     ///< bytes from the start of the file
  std::uint64_t checksum = 0;  ///< the stored checksum, as the head of this file defines it

  std::int64_t size() const { return rows * cols; }
  /// True where it lies in this group: "parameters", or the name of a config::StateArray.
  bool is_of(std::string_view group) const {
    return name.starts_with(group) && name.substr(group.size()).starts_with('/');
  }
  bool operator==(CheckpointArray const&) const = default;
};

/// All that a file says, apart from the numbers of its arrays.
struct Checkpoint {
  std::string path;
  std::int64_t file_bytes = 0;  ///< size of the whole file
  CheckpointHeader header;
  std::vector<TableRow> table;
  std::vector<CheckpointArray> arrays;  ///< in the order of checkpoint_arrays()

  /// The array of this name, or null when the file has none.
  CheckpointArray const* find(std::string const& array) const;
  bool operator==(Checkpoint const&) const = default;
};

/// The arrays that a file of this table has, in the file's order: all parameters, then each array of the optimizer's
/// state (config/optimizer_state.hpp) of all parameters. Offsets and checksums are zero.
std::vector<CheckpointArray> checkpoint_arrays(std::vector<TableRow> const& table, config::StateArrays state);

/// Reads everything but the arrays, on this process alone. Throws base::Error (bad_input) that names the file, and the
/// attribute or dataset where it is one, unless the file is such as p3d writes: whatever it holds, nothing larger than
/// the file is allocated.
Checkpoint read_checkpoint(std::string const& path);
/// Reads as read_checkpoint(path) does, on rank 0 alone, which broadcasts the result. A failure is thrown on every
/// rank. Collective.
Checkpoint read_checkpoint(comm::Communicator& world, std::string const& path);

/// A hash of the parameters alone, or (`all`) of all arrays and the step. It is made of names and checksums: files of
/// other layouts or offsets with the same numbers have the same hash.
std::uint64_t content_hash(Checkpoint const& checkpoint, bool all);

/// A rectangle of a global array that this rank holds. `copy_out(first, count, host)` copies `count` elements, starting
/// at element `first` of the rectangle in row-major order, to host memory; `copy_in` copies them back.
struct CheckpointPart {
  std::string array;
  std::int64_t global_rows = 1, global_cols = 1;  ///< shape of the whole array
  std::int64_t row_begin = 0, col_begin = 0;      ///< first element of the rectangle in the array
  std::int64_t rows = 0, cols = 0;                ///< may be empty
  comm::Communicator* replicas = nullptr;         ///< the ranks that hold the same rectangle and share the work
  bool writes = true;  ///< false: another group of replicas writes this array (tied embedding)
  std::function<void(std::int64_t first, std::int64_t count, void* host)> copy_out;
  std::function<void(std::int64_t first, std::int64_t count, void const* host)> copy_in;
};

/// How replicas (ranks that hold the same rectangle) share the reading.
///  place   `each` where all replicas are on one node, `rounds` elsewhere
///  each    every rank reads all that it needs; what another rank has read already lies in the node's memory
///  rounds  each element is read from the file once, by one replica, and broadcast to the others
enum class LoadBy { place, each, rounds };

/// Reads the parts of all ranks and compares the checksums of the arrays that are named. `element` is the type of the
/// numbers that copy_in() takes. Uses buffers of about `buffer_bytes` in all (at least a row each) and one more where
/// the file has another type. Throws base::Error on every rank, naming file and array, when a checksum differs: what
/// was copied in is then not to be used. Collective; replicas list their parts in the same order.
void load_parts(comm::Communicator& world, Checkpoint const& checkpoint, Element element,
                std::vector<CheckpointPart> const& parts, std::int64_t buffer_bytes, LoadBy way = LoadBy::place);

}  // namespace p3d::io
