// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model of a checkpoint, for commands that read it and do not train: its run's input, changed to what only reads,
// in the layout of the run or in another one.

#include "guard.hpp"

#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/data/tokenizer.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/report/gemm_trial.hpp>

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

namespace p3d::app {

using Overrides = std::vector<std::string>;

/// What such a command is told.
struct ModelLine {
  std::string checkpoint;
  Overrides layout;                ///< "parallel.tp=2", ...
  std::string tokenizer, pattern;  ///< instead of the run's; "": that
};

/// Parses the words after the command; an exit code when there is nothing more to do.
std::optional<int> parse_model_line(CLI::App& app, ModelLine& line, int argc, char** argv);

/// --tokenizer and --tokenizer-pattern.
void add_tokenizer_option(CLI::App& app, ModelLine& line);

/// The tokenizer of the command line, or of the run that wrote the checkpoint. Throws base::Error (bad_input) where it
/// is not that of the model.
std::unique_ptr<data::Tokenizer> stored_tokenizer(io::CheckpointHeader const& header, ModelLine const& line,
                                                  std::int64_t vocab_size);

/// The input of the run that wrote the checkpoint.
config::Config stored_config(io::CheckpointHeader const& header);

/// The same, changed to what only reads, in the layout of the run where its ranks are there, else replicas (or what the
/// command line says). `changes` come last.
config::Config reading_config(config::Config const& stored, io::CheckpointHeader const& header, ModelLine const& line,
                              int ranks, Overrides const& changes);

/// Loads the weights and calls work(trainer, header).
template <class P, class Work>
int with_weights(config::Config const& c, io::Checkpoint const& file, comm::Communicator& world, Work const& work) {
  linalg::set_gemm_choice(report::usual_gemms(c, world));
  engine::Trainer<P> trainer(c, world);
  io::load_parts(world, file, io::element_of<typename P::Master>(), trainer.checkpoint_parts(false),
                 c.checkpoint.buffer_mb << 20);
  return work(trainer, file.header);
}

/// Reads the checkpoint and calls work(trainer, header); changes(header, config of its run) gives overrides.
template <class Changes, class Work>
int with_stored_model(int argc, char** argv, ModelLine const& line, Changes const& changes, Work const& work) {
  return with_ranks(argc, argv, [&](comm::Communicator& world) {
    linalg::set_blas_threads(device::host_threads());
    auto const file = base::as_bad_input([&] { return io::read_checkpoint(world, line.checkpoint); });
    auto const c = comm::agree(world, "use the input in the checkpoint", [&] {
      auto const stored = stored_config(file.header);
      return reading_config(stored, file.header, line, world.size(), changes(file.header, stored));
    });
    return engine::with_policy(c, [&](auto policy) { return with_weights<decltype(policy)>(c, file, world, work); });
  });
}

}  // namespace p3d::app
