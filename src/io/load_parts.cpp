// SPDX-License-Identifier: Apache-2.0
// Reads the parts of all ranks from a checkpoint of any layout. Replicas hold the same rectangle, and share the work in
// one of two ways (LoadBy): `each` where they are on one node, so that the node's page cache serves all but the first
// reader; `rounds` elsewhere, where each element is read once and broadcast. The rank that reads its own share of a
// part also adds the share's checksum, so that every element counts once. Example: a matrix whose rows were divided
// over 4 ranks is read by 2 ranks, half of its rows each.
#include "checksum.hpp"
#include "posix_file.hpp"
#include "slices.hpp"
#include "together.hpp"

#include <p3d/io/checkpoint.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

namespace p3d::io {

namespace {

/// Bytes below which the rows of a part are too short to be read one by one. Whole rows of the array are then read and
/// cut, which costs less than a call for each row.
constexpr std::int64_t small_run = 2048;

/// Converts `count` numbers of type From to To.
template <class From, class To>
void convert(std::vector<char> const& from, std::int64_t count, std::vector<char>& to) {
  to.resize(static_cast<std::size_t>(count) * sizeof(To));
  auto const* in = reinterpret_cast<From const*>(from.data());
  auto* out = reinterpret_cast<To*>(to.data());
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<To>(in[i]);
}

/// The reading of one rank, and its buffers.
class Loader {
public:
  Loader(Checkpoint const& checkpoint, Element element, std::int64_t buffer_bytes, LoadBy way)
      : checkpoint_(checkpoint),
        element_(element),
        buffer_bytes_(buffer_bytes),
        way_(way),
        sums_(checkpoint.arrays.size(), 0) {}

  /// Reads rows of a part from the file into own_. Where `counts`, their checksum is added to sums_.
  void read(CheckpointPart const& part, CheckpointArray const& array, layout::Range rows, bool counts) {
    auto const bytes = size_of(checkpoint_.header.element);
    open();
    bool const cut = part.cols < part.global_cols && part.cols * static_cast<std::int64_t>(bytes) < small_run;
    if (cut) read_whole_rows(part, array, rows);
    for_runs(part, rows, [&](std::int64_t index, std::int64_t count, std::int64_t place) {
      auto* to = own_.data() + static_cast<std::size_t>(place) * bytes;
      if (!cut)
        file_->read(array.offset + index * static_cast<std::int64_t>(bytes), to,
                    static_cast<std::size_t>(count) * bytes);
      if (counts && part.writes) {
        sums_[static_cast<std::size_t>(&array - checkpoint_.arrays.data())] +=
            checksum(to, count, static_cast<std::uint64_t>(index), bytes);
      }
    });
  }

  /// Asks the system to read this rank's share ahead, while other parts are loaded.
  void announce(CheckpointPart const& part, std::optional<base::ErrorText>& failure) {
    auto const* array = checkpoint_.find(part.array);
    auto const bytes = static_cast<std::int64_t>(size_of(checkpoint_.header.element));
    auto const mine = share(part, static_cast<std::size_t>(bytes), part.replicas->rank(), part.replicas->size());
    if (mine.begin >= mine.end || part.cols == 0 || failure) return;
    failure = attempt([&] {
      open();
      auto const first = (part.row_begin + mine.begin) * part.global_cols + part.col_begin;
      auto const last = (part.row_begin + mine.end - 1) * part.global_cols + part.col_begin + part.cols;
      file_->read_ahead(array->offset + first * bytes, (last - first) * bytes);
    });
  }

  /// Loads one part on all of its replicas. Collective over them. After a failure the rank goes on with the broadcasts,
  /// so that no other rank waits for ever.
  void load(CheckpointPart const& part, std::optional<base::ErrorText>& failure) {
    if (on_one_node(*part.replicas))
      load_by_each(part, failure);
    else
      load_by_rounds(part, failure);
  }

  std::vector<std::uint64_t>& sums() { return sums_; }

private:
  /// Loads a part where every replica reads all of it, its own share first: the disk is read once, and the others find
  /// the data in the node's memory. A broadcast between ranks of one node would cost two copies more (4 ranks, 1.5 GB:
  /// 2.7 s instead of 0.8 s).
  void load_by_each(CheckpointPart const& part, std::optional<base::ErrorText>& failure) {
    auto const* array = checkpoint_.find(part.array);
    auto const bytes = size_of(checkpoint_.header.element);
    int const replicas = part.replicas->size(), here = part.replicas->rank();
    auto const step = rows_in(part, bytes, buffer_bytes_);
    for (int i = 0; i < replicas && !failure; ++i) {
      auto const all = share(part, bytes, (here + i) % replicas, replicas);
      for (auto row = all.begin; row < all.end && !failure; row += step) {
        layout::Range const rows{row, std::min(row + step, all.end)};
        auto const count = (rows.end - rows.begin) * part.cols;
        fit(own_, count * static_cast<std::int64_t>(bytes));
        failure = attempt_apart([&] { read(part, *array, rows, i == 0); });
        hand_over(part, rows, count, own_);
      }
    }
  }

  /// Loads a part in rounds: all replicas read a piece of their shares at the same time, then each broadcasts its piece
  /// to the others.
  void load_by_rounds(CheckpointPart const& part, std::optional<base::ErrorText>& failure) {
    auto const* array = checkpoint_.find(part.array);
    auto const bytes = size_of(checkpoint_.header.element);
    int const replicas = part.replicas->size(), here = part.replicas->rank();
    auto const step = rows_in(part, bytes, buffer_bytes_ / 2);
    auto const piece = [&](int r, std::int64_t round) {
      auto const rows = share(part, bytes, r, replicas);
      auto const begin = std::min(rows.begin + round * step, rows.end);
      return layout::Range{begin, std::min(begin + step, rows.end)};
    };
    bool more = true;
    for (std::int64_t round = 0; more; ++round) {
      more = false;
      auto const own = piece(here, round);
      fit(own_, (own.end - own.begin) * part.cols * static_cast<std::int64_t>(bytes));
      if (own.begin < own.end && !failure) failure = attempt_apart([&] { read(part, *array, own, true); });
      for (int r = 0; r < replicas; ++r) {
        auto const slice = piece(r, round);
        auto const count = (slice.end - slice.begin) * part.cols;
        if (count <= 0) continue;
        more = true;
        auto& buffer = r == here ? own_ : others_;
        fit(buffer, count * static_cast<std::int64_t>(bytes));
        part.replicas->broadcast(buffer.data(), count * static_cast<std::int64_t>(bytes), comm::Type::byte, r).wait();
        hand_over(part, slice, count, buffer);
      }
    }
  }

  /// True when all replicas of a group run on one node, by the hash of its name. Collective over `group` when it is
  /// asked for the first time.
  bool on_one_node(comm::Communicator& group) {
    if (way_ != LoadBy::place) return way_ == LoadBy::each;
    auto const known = on_one_node_.find(&group);
    if (known != on_one_node_.end()) return known->second;
    char name[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    MPI_Get_processor_name(name, &length);
    ByteHash hash;
    hash.add(name, static_cast<std::size_t>(length));
    auto const host = static_cast<std::int64_t>(hash.value() >> 2);
    // The largest of the hashes and the smallest, in one reduction.
    std::int64_t extremes[2] = {host, -host};
    group.all_reduce(extremes, 2, comm::Type::int64, comm::Reduction::max).wait();
    return on_one_node_[&group] = extremes[0] == -extremes[1];
  }

  void open() {
    if (!file_) file_.emplace(checkpoint_.path, PosixFile::Mode::read);
  }
  /// Makes a buffer at least this large.
  static void fit(std::vector<char>& buffer, std::int64_t bytes) {
    if (static_cast<std::int64_t>(buffer.size()) < bytes) buffer.resize(static_cast<std::size_t>(bytes));
  }

  /// Reads whole rows of the array, at most 1 MiB at a time, and cuts the part's columns out into own_.
  void read_whole_rows(CheckpointPart const& part, CheckpointArray const& array, layout::Range rows) {
    auto const bytes = static_cast<std::int64_t>(size_of(checkpoint_.header.element));
    auto const row_bytes = part.global_cols * bytes;
    auto const step = std::max<std::int64_t>(1, std::min<std::int64_t>(buffer_bytes_, 1 << 20) / row_bytes);
    wide_.resize(static_cast<std::size_t>(step * row_bytes));
    for (auto row = rows.begin; row < rows.end; row += step) {
      auto const n = std::min(step, rows.end - row);
      file_->read(array.offset + (part.row_begin + row) * row_bytes, wide_.data(),
                  static_cast<std::size_t>(n * row_bytes));
      for (std::int64_t i = 0; i < n; ++i) {
        std::memcpy(own_.data() + (row - rows.begin + i) * part.cols * bytes,
                    wide_.data() + i * row_bytes + part.col_begin * bytes, static_cast<std::size_t>(part.cols * bytes));
      }
    }
  }

  /// Passes rows that were read to the part, converted to its type where the file has another one.
  void hand_over(CheckpointPart const& part, layout::Range slice, std::int64_t count, std::vector<char> const& buffer) {
    auto const stored = checkpoint_.header.element;
    if (stored != element_) {
      if (stored == Element::float32)
        convert<float, double>(buffer, count, converted_);
      else
        convert<double, float>(buffer, count, converted_);
    }
    part.copy_in(slice.begin * part.cols, count, stored == element_ ? buffer.data() : converted_.data());
  }

  Checkpoint const& checkpoint_;
  Element element_;
  std::int64_t buffer_bytes_;
  LoadBy way_;
  std::vector<std::uint64_t> sums_;
  std::optional<PosixFile> file_;
  /// Own share; pieces of other replicas; whole rows; converted numbers.
  std::vector<char> own_, others_, wide_, converted_;
  std::map<comm::Communicator const*, bool> on_one_node_;
};

/// Throws when an array of the file is missing or has another shape than the run's model.
void require_shapes(Checkpoint const& c, std::vector<CheckpointPart> const& parts) {
  for (auto const& part : parts) {
    auto const* a = c.find(part.array);
    if (a && a->rows == part.global_rows && a->cols == part.global_cols) continue;
    base::refuse({.expected = fmt::format("{} [{}, {}]", part.array, part.global_rows, part.global_cols),
                  .found = a ? fmt::format("[{}, {}]", a->rows, a->cols) : "no such array",
                  .where = c.path,
                  .fix = "name a checkpoint of this model, or change [model] to that of the checkpoint"});
  }
}

}  // namespace

void load_parts(comm::Communicator& world, Checkpoint const& checkpoint, Element element,
                std::vector<CheckpointPart> const& parts, std::int64_t buffer_bytes, LoadBy way) {
  if (auto wrong = first_error(world, attempt([&] { require_shapes(checkpoint, parts); }))) {
    base::refuse(*wrong);
  }
  Loader loader(checkpoint, element, buffer_bytes, way);
  std::optional<base::ErrorText> failure;
  for (auto const& part : parts) loader.announce(part, failure);
  for (auto const& part : parts) loader.load(part, failure);
  if (auto wrong = first_error(world, failure)) throw base::Error(*wrong);

  auto& sums = loader.sums();
  // An array that no rank asked for has no sum to compare: mark the arrays that were read.
  std::vector<std::int64_t> asked(sums.size(), 0);
  for (auto const& part : parts)
    asked[static_cast<std::size_t>(checkpoint.find(part.array) - checkpoint.arrays.data())] = 1;
  auto const n = static_cast<std::int64_t>(sums.size());
  world.all_reduce(sums.data(), n, comm::Type::uint64, comm::Reduction::sum).wait();
  world.all_reduce(asked.data(), n, comm::Type::int64, comm::Reduction::max).wait();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    auto const& a = checkpoint.arrays[i];
    if (asked[i] == 0 || sums[i] == a.checksum) continue;
    throw base::Error(
        {.expected = fmt::format("{} with checksum {:016x}", a.name, a.checksum),
         .found = fmt::format("checksum {:016x}: the numbers were changed after they were written", sums[i]),
         .where = checkpoint.path,
         .fix = "use an older checkpoint (p3d checkpoint ls FOLDER), or copy this one again"});
  }
}

}  // namespace p3d::io
