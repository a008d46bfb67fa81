// SPDX-License-Identifier: Apache-2.0
// Writes a rank's share of a checkpoint, and reads it back. Three writers give the same bytes: write_copy from a copy
// in host memory (in a thread, no MPI), write_shares straight from the parts, write_by_root through rank 0. A share is
// cut into pieces of whole rows that fit a buffer; the checksum of a piece is taken while it lies in the buffer. In the
// two collective writers all ranks agree before every load whether one has failed, so that none waits for a rank that
// has stopped.

#include "checksum.hpp"
#include "posix_file.hpp"
#include "write_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace p3d::io {

namespace {

/// The checksum of the rows of a part, whose elements lie packed at `memory`.
std::uint64_t sum_of(CheckpointPart const& part, layout::Range rows, void const* memory, std::size_t bytes) {
  auto const* const data = static_cast<std::byte const*>(memory);
  std::uint64_t sum = 0;
  for_runs(part, rows, [&](std::int64_t index, std::int64_t count, std::int64_t place) {
    sum += checksum(data + static_cast<std::size_t>(place) * bytes, count, static_cast<std::uint64_t>(index), bytes);
  });
  return sum;
}

/// Cuts a slice's rows into pieces that fit a buffer, and calls visit(rows) for each.
template <class Visit>
void for_pieces(CheckpointSlice const& slice, std::size_t bytes, std::int64_t buffer_bytes, Visit&& visit) {
  auto const step = rows_in(slice.part, bytes, buffer_bytes);
  for (auto row = slice.rows.begin; row < slice.rows.end; row += step)
    visit(layout::Range{row, std::min(row + step, slice.rows.end)});
}

void require_wanted(std::atomic<bool> const& given_up, std::string const& path) {
  if (given_up)
    throw base::Error({.expected = "a run that goes on",
                       .found = "one that ends with an error",
                       .where = path,
                       .fix = "see that error; older checkpoints were kept"});
}

/// Bytes after which a long write is flushed, so that no single flush has more to do than its time budget allows.
constexpr std::int64_t flushed_at_once = std::int64_t{4} << 30;

}  // namespace

std::vector<CheckpointSlice> make_slices(std::vector<CheckpointPart> const& parts,
                                         std::vector<CheckpointArray> const& arrays, std::size_t element_bytes) {
  std::vector<CheckpointSlice> out;
  std::int64_t place = 0;
  for (auto const& part : parts) {
    if (!part.writes) continue;
    CheckpointSlice s;
    s.part = part;
    s.rows = share(part, element_bytes, part.replicas->rank(), part.replicas->size());
    if (s.elements() == 0) continue;
    auto const it = std::find_if(arrays.begin(), arrays.end(), [&](auto const& a) { return a.name == part.array; });
    P3D_REQUIRE(it != arrays.end() && it->rows == part.global_rows && it->cols == part.global_cols,
                "the part belongs to an array of the file");
    s.array = static_cast<std::size_t>(it - arrays.begin());
    s.place = place;
    place += s.elements();
    out.push_back(std::move(s));
  }
  return out;
}

void write_copy(CheckpointJob& job, std::byte const* copy, std::atomic<bool> const& given_up) {
  auto const bytes = size_of(job.header.element);
  PosixFile const file(job.part_path, PosixFile::Mode::write);
  WritersTurn turn(file);
  std::int64_t unflushed = 0;
  for (auto& slice : job.slices) {
    slice.checksum = 0;
    // Pieces that stay in the cache between checksum and write.
    for_pieces(slice, bytes, 4 << 20, [&](layout::Range rows) {
      require_wanted(given_up, job.part_path);
      auto const* data =
          copy + static_cast<std::size_t>(slice.place + (rows.begin - slice.rows.begin) * slice.part.cols) * bytes;
      slice.checksum += sum_of(slice.part, rows, data, bytes);
      turn.begin();
      for_runs(slice.part, rows, [&](std::int64_t index, std::int64_t count, std::int64_t place) {
        file.write(job.skeleton.offsets[slice.array] + index * static_cast<std::int64_t>(bytes),
                   data + static_cast<std::size_t>(place) * bytes, static_cast<std::size_t>(count) * bytes);
      });
      turn.end();  // after an exception, the destructor's close releases the lock
      unflushed += (rows.end - rows.begin) * slice.part.cols * static_cast<std::int64_t>(bytes);
      if (unflushed < flushed_at_once) return;
      file.flush();
      unflushed = 0;
    });
  }
  file.flush();
}

void read_back(CheckpointJob const& job, std::int64_t buffer_bytes, std::atomic<bool> const& given_up) {
  if (job.slices.empty()) return;
  auto const bytes = size_of(job.header.element);
  PosixFile const file(job.path, PosixFile::Mode::read);
  file.forget_cache();
  std::vector<char> buffer;
  for (auto const& slice : job.slices) {
    std::uint64_t sum = 0;
    for_pieces(slice, bytes, std::min<std::int64_t>(buffer_bytes, 4 << 20), [&](layout::Range rows) {
      require_wanted(given_up, job.path);
      buffer.resize(static_cast<std::size_t>((rows.end - rows.begin) * slice.part.cols) * bytes);
      for_runs(slice.part, rows, [&](std::int64_t index, std::int64_t count, std::int64_t place) {
        file.read(job.skeleton.offsets[slice.array] + index * static_cast<std::int64_t>(bytes),
                  buffer.data() + static_cast<std::size_t>(place) * bytes, static_cast<std::size_t>(count) * bytes);
      });
      sum += sum_of(slice.part, rows, buffer.data(), bytes);
    });
    if (sum == slice.checksum) continue;
    throw base::Error({.expected = fmt::format("{} on disk as it was written", job.arrays[slice.array].name),
                       .found = "other numbers",
                       .where = job.path,
                       .fix = "check the disk; older checkpoints were kept"});
  }
}

namespace {

/// Bytes that rank 0 writes: `rows` runs of `run_bytes` each, `stride` bytes apart in the file and packed in the
/// buffer. It is sent as four int64.
struct Runs {
  std::int64_t offset = 0;
  std::int64_t run_bytes = 0;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
};
static_assert(sizeof(Runs) == 4 * sizeof(std::int64_t));

/// Rows of slices that fill one buffer.
struct Load {
  std::vector<std::pair<CheckpointSlice*, layout::Range>> pieces;
  std::int64_t bytes = 0;
};

/// Packs the rows of all slices of this rank into loads of at most `buffer_bytes` (a single row may be larger).
std::vector<Load> make_loads(CheckpointJob& job, std::size_t bytes, std::int64_t buffer_bytes) {
  std::vector<Load> out;
  for (auto& slice : job.slices) {
    slice.checksum = 0;
    for_pieces(slice, bytes, buffer_bytes, [&](layout::Range rows) {
      auto const size = (rows.end - rows.begin) * slice.part.cols * static_cast<std::int64_t>(bytes);
      if (out.empty() || out.back().bytes + size > buffer_bytes) out.emplace_back();
      out.back().pieces.emplace_back(&slice, rows);
      out.back().bytes += size;
    });
  }
  return out;
}

/// Copies a load out of the parts into `buffer`, adds to the slices' checksums, and returns where its bytes go.
std::vector<Runs> fill(CheckpointJob const& job, Load const& load, std::size_t element, std::vector<char>& buffer) {
  auto const bytes = static_cast<std::int64_t>(element);
  buffer.resize(static_cast<std::size_t>(load.bytes));
  std::vector<Runs> runs;
  std::int64_t at = 0;
  for (auto const& [slice, rows] : load.pieces) {
    auto const& part = slice->part;
    auto const count = (rows.end - rows.begin) * part.cols;
    auto* const data = buffer.data() + at;
    part.copy_out(rows.begin * part.cols, count, data);
    slice->checksum += sum_of(part, rows, data, element);
    bool const whole = part.cols == part.global_cols;
    auto const first = (part.row_begin + rows.begin) * part.global_cols + part.col_begin;
    runs.push_back({job.skeleton.offsets[slice->array] + first * bytes, (whole ? count : part.cols) * bytes,
                    part.global_cols * bytes, whole ? 1 : rows.end - rows.begin});
    at += count * bytes;
  }
  return runs;
}

/// Writes the runs, whose bytes lie one behind the other at `data`.
void write_runs(PosixFile const& file, std::vector<Runs> const& runs, char const* data) {
  for (auto const& r : runs) {
    for (std::int64_t row = 0; row < r.rows; ++row, data += r.run_bytes)
      file.write(r.offset + row * r.stride, data, static_cast<std::size_t>(r.run_bytes));
  }
}

/// True on every rank when one of them has a failure; the rank with the failure throws it instead. Collective: all
/// agree before each load, so that none waits longer than one load takes, and an error ends the writing for all.
bool one_has_failed(comm::Communicator& world, std::optional<base::ErrorText> const& failure) {
  std::int64_t bad = failure ? 1 : 0;
  world.all_reduce(&bad, 1, comm::Type::int64, comm::Reduction::max).wait();
  if (bad != 0 && failure) throw base::Error(*failure);
  return bad != 0;
}

}  // namespace

void write_shares(CheckpointJob& job, comm::Communicator& world, std::int64_t buffer_bytes) {
  auto const element = size_of(job.header.element);
  // Loads are small enough for the disk to take one in a moment: the other ranks wait for each.
  auto const loads = make_loads(job, element, std::min<std::int64_t>(buffer_bytes, 16 << 20));
  auto rounds = static_cast<std::int64_t>(loads.size());
  world.all_reduce(&rounds, 1, comm::Type::int64, comm::Reduction::max).wait();
  std::optional<PosixFile> file;
  std::optional<WritersTurn> turn;
  auto failure = attempt_apart([&] {
    file.emplace(job.part_path, PosixFile::Mode::write);
    turn.emplace(*file);
  });
  std::vector<char> buffer;
  std::vector<Runs> runs;
  for (std::int64_t n = 0; n < rounds; ++n) {
    if (one_has_failed(world, failure)) return;
    if (n >= std::ssize(loads)) continue;
    failure = attempt([&] { runs = fill(job, loads[static_cast<std::size_t>(n)], element, buffer); });
    if (failure) continue;
    failure = attempt_apart([&] {
      turn->begin();
      write_runs(*file, runs, buffer.data());
      turn->end();
    });
    if (failure) turn.reset();  // releases the lock: other ranks of this round may wait for it
  }
  if (failure) throw base::Error(*failure);
}

void flush_share(CheckpointJob const& job) { PosixFile(job.part_path, PosixFile::Mode::write).flush(); }

void write_by_root(CheckpointJob& job, comm::Communicator& world, std::int64_t buffer_bytes) {
  constexpr int size_tag = 1, runs_tag = 2, data_tag = 3;
  auto const element = size_of(job.header.element);
  bool const root = world.rank() == 0;
  auto const loads = make_loads(job, element, buffer_bytes);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()));
  auto const mine = static_cast<std::int64_t>(loads.size());
  world.all_gather(&mine, counts.data(), 1, comm::Type::int64).wait();

  std::optional<PosixFile> file;
  std::optional<base::ErrorText> failure;
  if (root) failure = attempt_apart([&] { file.emplace(job.part_path, PosixFile::Mode::write); });
  std::vector<char> buffer;
  std::vector<Runs> runs;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (std::int64_t n = 0; n < counts[static_cast<std::size_t>(rank)]; ++n) {
      if (one_has_failed(world, failure)) return;
      if (world.rank() == rank) {
        failure = attempt([&] { runs = fill(job, loads[static_cast<std::size_t>(n)], element, buffer); });
        if (failure) runs.clear(), buffer.clear();
      }
      if (rank != 0 && (root || world.rank() == rank)) {
        std::int64_t sizes[2] = {static_cast<std::int64_t>(runs.size()), static_cast<std::int64_t>(buffer.size())};
        if (root) {
          world.recv(sizes, 2, comm::Type::int64, rank, size_tag).wait();
          runs.resize(static_cast<std::size_t>(sizes[0]));
          buffer.resize(static_cast<std::size_t>(sizes[1]));
          if (sizes[0] > 0) {
            world.recv(runs.data(), 4 * sizes[0], comm::Type::int64, rank, runs_tag).wait();
            world.recv(buffer.data(), sizes[1], comm::Type::byte, rank, data_tag).wait();
          }
        } else {
          world.send(sizes, 2, comm::Type::int64, 0, size_tag).wait();
          if (sizes[0] > 0) {
            world.send(runs.data(), 4 * sizes[0], comm::Type::int64, 0, runs_tag).wait();
            world.send(buffer.data(), sizes[1], comm::Type::byte, 0, data_tag).wait();
          }
        }
      }
      if (root && !failure) failure = attempt_apart([&] { write_runs(*file, runs, buffer.data()); });
    }
  }
  if (root && !failure) failure = attempt_apart([&] { file->flush(); });
  if (failure) throw base::Error(*failure);
}

}  // namespace p3d::io
