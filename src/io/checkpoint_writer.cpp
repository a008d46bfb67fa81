#include <p3d/io/checkpoint_writer.hpp>

#include "hdf5.hpp"
#include "posix_file.hpp"
#include "write_state.hpp"

#include <cstdio>
#include <unistd.h>

namespace p3d::io {

void CheckpointWriter::State::begin(Stage next, std::function<void()> work) {
  stage = next;
  done = false;
  failure.reset();
  auto run = [this, work = std::move(work)] {
    failure = attempt(work);
    done = true;
  };
  if (options.async) {
    thread = std::thread(run);
  } else {
    run();
  }
}

bool CheckpointWriter::State::all_done() {
  std::int64_t all = done ? 1 : 0;
  world.all_reduce(&all, 1, comm::Type::int64, comm::Reduction::min).wait();
  return all == 1;
}

std::optional<WriteResult> CheckpointWriter::State::end(std::optional<base::ErrorText> error) {
  stage = Stage::idle;
  result.error = std::move(error);
  if (result.error && world.rank() == 0) std::remove(job.part_path.c_str());
  job = {};
  return result;
}

std::optional<WriteResult> CheckpointWriter::State::advance() {
  if (thread.joinable()) thread.join();
  auto error = first_error(world, failure);
  if (error) return end(std::move(error));
  bool const root = world.rank() == 0;
  switch (stage) {
    case Stage::data: {
      job.sums.assign(job.arrays.size(), 0);
      for (auto const& s : job.slices) job.sums[s.array] += s.checksum;
      world
          .all_reduce(job.sums.data(), static_cast<std::int64_t>(job.sums.size()), comm::Type::uint64,
                      comm::Reduction::sum)
          .wait();
      begin(Stage::commit, [this, root] {
        if (!root) return;
        finish_file(job.part_path, job.header, job.table, job.moments, job.skeleton, job.sums);
        rename_and_flush(job.part_path, job.path);
      });
      return {};
    }
    case Stage::commit:
      result.seconds = watch.seconds();
      if (!options.verify) return end({});
      begin(Stage::verify, [this] { read_back(job, options.buffer_bytes); });
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
  if (state_->thread.joinable()) state_->thread.join();
}

bool CheckpointWriter::busy() const { return state_->stage != State::Stage::idle; }
std::int64_t CheckpointWriter::copy_bytes() const { return static_cast<std::int64_t>(state_->copy.size()); }

void CheckpointWriter::reserve(std::vector<CheckpointPart> const& parts, Element element) {
  if (!state_->options.async) return;
  std::int64_t elements = 0;
  for (auto const& part : parts) {
    auto const rows = share(part, size_of(element), part.replicas->rank(), part.replicas->size());
    if (part.writes) elements += (rows.end - rows.begin) * part.cols;
  }
  auto const bytes = static_cast<std::size_t>(elements) * size_of(element);
  if (state_->copy.size() < bytes) state_->copy.resize(bytes);
}

void CheckpointWriter::start(std::string const& path, CheckpointHeader const& header,
                             std::vector<TableRow> const& table, bool moments,
                             std::vector<CheckpointPart> const& parts) {
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
  job.moments = moments;
  job.arrays = checkpoint_arrays(table, moments);
  for (auto const& a : job.arrays) s.result.bytes += a.size() * static_cast<std::int64_t>(size_of(header.element));

  std::optional<base::ErrorText> failure;
  auto& offsets = job.skeleton.offsets;
  if (s.world.rank() == 0)
    failure = attempt([&] { job.skeleton = make_skeleton(job.part_path, header, table, moments); });
  offsets.resize(job.arrays.size());
  s.world.broadcast(offsets.data(), static_cast<std::int64_t>(offsets.size()), comm::Type::int64, 0).wait();
  job.slices = make_slices(parts, job.arrays, size_of(header.element));
  if (s.options.async && !failure) {
    failure = attempt([&] {
      reserve(parts, header.element);
      for (auto const& slice : job.slices) {
        slice.part.copy_out(slice.rows.begin * slice.part.cols, slice.elements(),
                            s.copy.data() + static_cast<std::size_t>(slice.place) * size_of(header.element));
      }
    });
  }
  if (first_error(s.world, failure)) {
    // Reported by the next poll, as every later failure.
    s.begin(State::Stage::data, [failure] {
      if (failure) throw base::Error(*failure);
    });
  } else if (s.options.async) {
    s.begin(State::Stage::data, [&s] { write_copy(s.job, s.copy); });
  } else {
    s.begin(State::Stage::data, [&s] { write_together(s.job, s.world, s.options.buffer_bytes); });
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
