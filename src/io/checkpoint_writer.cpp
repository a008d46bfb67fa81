// SPDX-License-Identifier: Apache-2.0
// The stages of writing a checkpoint (write_state.hpp names them). The work of a stage runs in a thread of each rank,
// which makes no MPI call; poll() asks with one all-reduce whether all threads are done and then begins the next stage.
// Example with WriteBy::copied: start() copies the share and begins `make`; polls at later steps begin `data`, `commit`
// and `verify`, and the last one returns the result.
#include <p3d/io/checkpoint_writer.hpp>

#include "hdf5.hpp"
#include "posix_file.hpp"
#include "write_state.hpp"

#include <p3d/io/text_file.hpp>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <system_error>

#include <unistd.h>

namespace p3d::io {

void CheckpointWriter::State::begin(Stage next, std::function<void()> work) {
  stage = next;
  done = false;
  failure.reset();
  auto const run = [this, work = std::move(work)] {
    failure = attempt(work);
    done = true;
  };
  try {
    thread = std::thread(run);
  } catch (std::system_error const&) {  // no more threads for this user: training waits for the work
    run();
  }
}

void CheckpointWriter::State::begin_data() {
  auto& offsets = job.skeleton.offsets;
  offsets.resize(job.arrays.size());
  world.broadcast(offsets.data(), static_cast<std::int64_t>(offsets.size()), comm::Type::int64, 0).wait();
  if (options.way == WriteBy::copied) {
    begin(Stage::data, [this] { write_copy(job, copy.get(), given_up); });
    return;
  }
  stage = Stage::data;
  bool const by_root = options.way == WriteBy::by_root;
  failure = attempt([&] {
    by_root ? write_by_root(job, world, options.buffer_bytes) : write_shares(job, world, options.buffer_bytes);
  });
  done = true;
  // The flush runs in the thread: no rank may keep the others waiting for more than a moment at a time.
  if (!by_root && !failure) begin(Stage::data, [this] { flush_share(job); });
}

bool CheckpointWriter::State::all_done() {
  std::int64_t all = done ? 1 : 0;
  world.all_reduce(&all, 1, comm::Type::int64, comm::Reduction::min).wait();
  return all == 1;
}

std::optional<WriteResult> CheckpointWriter::State::end(std::optional<base::ErrorText> error) {
  stage = Stage::idle;
  result.error = std::move(error);
  if (result.error && world.rank() == 0) {
    // A file that cannot be removed now is removed by the next run of this name.
    if (auto const left = attempt_apart([this] { remove_if_there(job.part_path); }))
      result.error->fix += "; delete the .part file";
  }
  job = {};
  return result;
}

std::optional<WriteResult> CheckpointWriter::State::advance() {
  if (thread.joinable()) thread.join();
  auto error = first_error(world, failure);
  if (error) return end(std::move(error));
  bool const root = world.rank() == 0;
  switch (stage) {
    case Stage::make: begin_data(); return {};
    case Stage::data: {
      job.sums.assign(job.arrays.size(), 0);
      for (auto const& s : job.slices) job.sums[s.array] += s.checksum;
      world
          .all_reduce(job.sums.data(), static_cast<std::int64_t>(job.sums.size()), comm::Type::uint64,
                      comm::Reduction::sum)
          .wait();
      begin(Stage::commit, [this, root] {
        if (!root) return;
        if (options.before_commit) options.before_commit();
        finish_file(job.part_path, job.header, job.table, job.state, job.skeleton, job.sums);
        rename_and_flush(job.part_path, job.path);
      });
      return {};
    }
    case Stage::commit:
      result.seconds = watch.seconds();
      if (!options.verify) return end({});
      begin(Stage::verify, [this] { read_back(job, options.buffer_bytes, given_up); });
      return {};
    default:
      result.verified = true;
      result.verify_seconds = watch.seconds() - result.seconds;
      return end({});
  }
}

CheckpointWriter::CheckpointWriter(comm::Communicator const& world, Options options)
    : state_(std::make_unique<State>(world, options)) {
  start_hdf5();
}

CheckpointWriter::~CheckpointWriter() {
  // Without the other ranks the checkpoint cannot be completed. They wait for the error of this rank, which is printed
  // when the thread has ended.
  if (std::uncaught_exceptions() > 0) state_->given_up = true;
  if (state_->thread.joinable()) state_->thread.join();
}

bool CheckpointWriter::busy() const { return state_->stage != State::Stage::idle; }
std::int64_t CheckpointWriter::copy_bytes() const { return static_cast<std::int64_t>(state_->copy_bytes); }

void CheckpointWriter::reserve(std::vector<CheckpointPart> const& parts, Element element) {
  auto& s = *state_;
  if (s.options.way != WriteBy::copied) return;
  std::int64_t elements = 0;
  for (auto const& part : parts) {
    auto const rows = share(part, size_of(element), part.replicas->rank(), part.replicas->size());
    if (part.writes) elements += (rows.end - rows.begin) * part.cols;
  }
  auto const bytes = static_cast<std::size_t>(elements) * size_of(element);
  if (s.copy_bytes >= bytes) return;
  s.copy_bytes = 0;
  s.copy.reset();  // so that there are never two copies
  s.copy = s.options.memory ? s.options.memory(bytes)
                            : std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  s.copy_bytes = bytes;
  std::fill_n(s.copy.get(), bytes, std::byte{});  // the system gives memory when it is touched
}

void CheckpointWriter::start(std::string const& path, CheckpointHeader const& header,
                             std::vector<TableRow> const& table, config::StateArrays state,
                             std::vector<CheckpointPart> const& parts, ModelFiles const& model_files) {
  auto& s = *state_;
  P3D_REQUIRE(!busy(), "one checkpoint at a time");
  s.watch = {};
  s.result = {};
  s.result.path = path;
  s.result.step = header.step;
  auto& job = s.job;
  job = {};
  job.path = path;
  job.part_path = path + ".part";
  job.header = header;
  job.table = table;
  job.state.assign(state.begin(), state.end());
  if (s.world.rank() == 0) job.model_files = model_files;
  job.arrays = checkpoint_arrays(table, state);
  for (auto const& a : job.arrays) s.result.bytes += a.size() * static_cast<std::int64_t>(size_of(header.element));

  job.slices = make_slices(parts, job.arrays, size_of(header.element));
  std::optional<base::ErrorText> failure;
  if (s.options.way == WriteBy::copied) {
    failure = attempt([&] {
      reserve(parts, header.element);
      for (auto const& slice : job.slices) {
        slice.part.copy_out(slice.rows.begin * slice.part.cols, slice.elements(),
                            s.copy.get() + static_cast<std::size_t>(slice.place) * size_of(header.element));
      }
    });
  }
  // An error of the copying is reported by the next poll, as every later one.
  s.begin(State::Stage::make, [&s, failure] {
    if (failure) throw base::Error(*failure);
    if (s.world.rank() != 0) return;
    // The folder may have been deleted meanwhile. When it cannot be made, creating the file reports that.
    (void)attempt([&s] { make_folder(std::filesystem::path(s.job.path).parent_path().string()); });
    s.job.skeleton = make_skeleton(s.job.part_path, s.job.header, s.job.table, s.job.state, s.job.model_files);
  });
  if (s.options.way != WriteBy::copied) {  // there is no copy: the parts are written before this returns
    while (!s.all_done()) ::usleep(200);
    if (s.thread.joinable()) s.thread.join();
    if (!first_error(s.world, s.failure)) s.advance();
  }
  s.result.held_seconds = s.watch.seconds();
}

std::optional<WriteResult> CheckpointWriter::poll() {
  auto& s = *state_;
  if (!busy()) return {};
  base::Stopwatch held;
  std::optional<WriteResult> out;
  if (s.all_done()) out = s.advance();
  s.result.held_seconds += held.seconds();
  if (out) out->held_seconds = s.result.held_seconds;
  return out;
}

WriteResult CheckpointWriter::finish() {
  P3D_REQUIRE(busy(), "a checkpoint is being written");
  for (;;) {
    if (auto out = poll()) return *out;
    if (!state_->done) ::usleep(200);
  }
}

}  // namespace p3d::io
