// Writing and reading back a rank's share of a checkpoint.

#include "checksum.hpp"
#include "hdf5.hpp"
#include "posix_file.hpp"
#include "write_state.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace p3d::io {

namespace {

/// Checksum of the rows of a part whose elements lie at `data`.
std::uint64_t sum_of(CheckpointPart const& part, Rows rows, char const* data, std::size_t bytes) {
  std::uint64_t sum = 0;
  for_runs(part, rows, [&](std::int64_t index, std::int64_t count, std::int64_t place) {
    sum += checksum(data + static_cast<std::size_t>(place) * bytes, count, static_cast<std::uint64_t>(index), bytes);
  });
  return sum;
}

/// Cuts a slice's rows into pieces for a buffer.
template <class Visit>
void for_pieces(Slice const& slice, std::size_t bytes, std::int64_t buffer_bytes, Visit&& visit) {
  auto const step = rows_in(slice.part, bytes, buffer_bytes);
  for (auto row = slice.rows.begin; row < slice.rows.end; row += step)
    visit(Rows{row, std::min(row + step, slice.rows.end)});
}

}  // namespace

std::vector<Slice> make_slices(std::vector<CheckpointPart> const& parts, std::vector<CheckpointArray> const& arrays,
                               std::size_t element_bytes) {
  std::vector<Slice> out;
  std::int64_t place = 0;
  for (auto const& part : parts) {
    if (!part.writes) continue;
    Slice s;
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

void write_copy(Job& job, std::vector<char> const& copy) {
  auto const bytes = size_of(job.header.element);
  PosixFile const file(job.part_path, PosixFile::Mode::write);
  WritersTurn turn(file);
  for (auto& slice : job.slices) {
    slice.checksum = 0;
    for_pieces(slice, bytes, 4 << 20, [&](Rows rows) {  // pieces that stay in cache between sum and write
      auto const* data =
          copy.data() +
          static_cast<std::size_t>(slice.place + (rows.begin - slice.rows.begin) * slice.part.cols) * bytes;
      slice.checksum += sum_of(slice.part, rows, data, bytes);
      turn.begin();
      for_runs(slice.part, rows, [&](std::int64_t index, std::int64_t count, std::int64_t place) {
        file.write(job.skeleton.offsets[slice.array] + index * static_cast<std::int64_t>(bytes),
                   data + static_cast<std::size_t>(place) * bytes, static_cast<std::size_t>(count) * bytes);
      });
      turn.end();  // an exception's way out closes the lock
    });
  }
  file.flush();
}

void read_back(Job const& job, std::int64_t buffer_bytes) {
  if (job.slices.empty()) return;
  auto const bytes = size_of(job.header.element);
  PosixFile const file(job.path, PosixFile::Mode::read);
  file.forget_cache();
  std::vector<char> buffer;
  for (auto const& slice : job.slices) {
    std::uint64_t sum = 0;
    for_pieces(slice, bytes, std::min<std::int64_t>(buffer_bytes, 4 << 20), [&](Rows rows) {
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

void write_together(Job& job, comm::Communicator& world, std::int64_t buffer_bytes) {
  auto const bytes = size_of(job.header.element);
  auto const& path = job.part_path;
  // Every rank takes part in every write, with nothing where it has nothing: as many as the rank that needs most.
  std::vector<std::int64_t> writes(job.arrays.size(), 0);
  std::vector<Slice*> mine(job.arrays.size(), nullptr);
  for (auto& slice : job.slices) {
    P3D_REQUIRE(mine[slice.array] == nullptr, "a rank holds one part of an array");
    mine[slice.array] = &slice;
    slice.checksum = 0;
    for_pieces(slice, bytes, buffer_bytes, [&](Rows) { ++writes[slice.array]; });
  }
  world.all_reduce(writes.data(), static_cast<std::int64_t>(writes.size()), comm::Type::int64, comm::Reduction::max)
      .wait();

  H5 const access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file properties", path);
  H5Pset_fapl_mpio(access, world.mpi(), MPI_INFO_NULL);
  H5Pset_all_coll_metadata_ops(access, true);
  H5 const transfer(H5Pcreate(H5P_DATASET_XFER), H5Pclose, "transfer properties", path);
  H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
  H5 file(H5Fopen(path.c_str(), H5F_ACC_RDWR, access), H5Fclose, "a checkpoint that can be written", path);
  auto const type = job.header.element == Element::float32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE;
  std::vector<char> buffer(8);
  std::optional<base::ErrorText> failure;  // kept until the end: the other ranks go on with their calls
  for (std::size_t a = 0; a < job.arrays.size(); ++a) {
    H5 const set(H5Dopen2(file, job.arrays[a].name.c_str(), H5P_DEFAULT), H5Dclose, "room for " + job.arrays[a].name,
                 path);
    H5 const space(H5Dget_space(set), H5Sclose, "a data space", path);
    bool const vector = H5Sget_simple_extent_ndims(space) == 1;
    auto* slice = mine[a];
    auto row = slice ? slice->rows.begin : 0;
    for (std::int64_t w = 0; w < writes[a]; ++w) {
      Rows const rows{row, slice ? std::min(row + rows_in(slice->part, bytes, buffer_bytes), slice->rows.end) : 0};
      hsize_t count[2] = {static_cast<hsize_t>(std::max<std::int64_t>(0, rows.end - rows.begin)), 0};
      H5 memory;
      if (slice != nullptr && count[0] > 0) {
        auto const& part = slice->part;
        count[1] = static_cast<hsize_t>(part.cols);
        buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(count[0] * count[1]) * bytes));
        part.copy_out(rows.begin * part.cols, static_cast<std::int64_t>(count[0] * count[1]), buffer.data());
        slice->checksum += sum_of(part, rows, buffer.data(), bytes);
        hsize_t const start[2] = {static_cast<hsize_t>(part.row_begin + rows.begin),
                                  static_cast<hsize_t>(part.col_begin)};
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start + (vector ? 1 : 0), nullptr, count + (vector ? 1 : 0),
                            nullptr);
        memory = H5(H5Screate_simple(2, count, nullptr), H5Sclose, "a data space", path);
        row = rows.end;
      } else {
        hsize_t const one = 1;
        memory = H5(H5Screate_simple(1, &one, nullptr), H5Sclose, "a data space", path);
        H5Sselect_none(memory);
        H5Sselect_none(space);
      }
      auto const wrong = attempt([&] {
        if (H5Dwrite(set, type, memory, space, transfer, buffer.data()) < 0)
          hdf5_failed("room for the whole checkpoint", path);
      });
      if (wrong && !failure) failure = wrong;
    }
  }
  auto const wrong = attempt([&] {
    if (H5Fflush(file, H5F_SCOPE_LOCAL) < 0) hdf5_failed("a checkpoint that reaches the disk", path);
    file.close(path);
  });
  if (wrong && !failure) failure = wrong;
  if (!failure) {
    failure = attempt([&] { PosixFile(path, PosixFile::Mode::write).flush(); });
  }
  if (failure) throw base::Error(*failure);
}

}  // namespace p3d::io
