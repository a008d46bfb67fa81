// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model of a checkpoint, or of a folder in Hugging Face form, for commands that read it and do not train (generate,
// eval). It is opened, compared with what its input says, then loaded in the layout of the run or in another one.

#include "guard.hpp"

#include <p3d/comm/agree.hpp>
#include <p3d/config/reading.hpp>
#include <p3d/text/tokenizer.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/model_weights.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/report/gemm_trial.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace p3d::app {

using Overrides = std::vector<std::string>;

/// The command line of such a command.
struct ModelLine {
  std::string model;               ///< a checkpoint, or the folder of a run or of a model
  Overrides layout;                ///< keys of [parallel]: "parallel.tp=2", ...
  std::string tokenizer, pattern;  ///< tokenizer in place of the model's; "": the model's
  std::string precision;           ///< precision in place of the run's; "": the run's
  std::int64_t seq_len = 0;        ///< tokens of a window by --seq-len; 0: not given
};

/// Adds --precision, and parses the words after the command. Returns an exit code when there is nothing more to do.
std::optional<int> parse_model_line(CLI::App& app, ModelLine& line, int argc, char** argv);

/// Adds --tokenizer and --tokenizer-pattern.
void add_tokenizer_option(CLI::App& app, ModelLine& line);

/// A trained model that is open; its numbers are still on disk.
struct StoredModel {
  std::string path;                          ///< the checkpoint, or the folder
  config::Config config;                     ///< for a checkpoint the run's input; for a folder [model] and a precision
  io::StoredTokenizer tokenizer;             ///< without a name: every byte is a token
  std::optional<io::Checkpoint> checkpoint;  ///< set for a checkpoint
  std::unique_ptr<io::ModelWeights> weights;  ///< set for a folder
};

/// Opens the model that the command line names: a checkpoint; the newest valid checkpoint of a run's folder; or a model
/// in Hugging Face form. Collective.
StoredModel open_stored_model(comm::Communicator& world, ModelLine const& line);

/// The tokenizer of the command line, or of the model. Throws base::Error (bad_input) when it does not fit the model's
/// vocabulary.
std::unique_ptr<text::Tokenizer> stored_tokenizer(StoredModel const& model, ModelLine const& line);

/// The input for reading the model. It is compared with the stored arrays before any memory of the size that it says is
/// taken. Throws base::Error (bad_input) when they differ.
config::Config reading_config(StoredModel const& model, ModelLine const& line, config::Reading wanted);

/// Makes a trainer of policy P, loads the weights and calls work(trainer).
template <class P, class Work>
int with_weights(config::Config const& c, StoredModel& model, comm::Communicator& world, Work const& work) {
  linalg::set_gemm_choice(report::usual_gemms(c, world));
  engine::Trainer<P> trainer(c, world);
  auto const element = io::element_of(c.run.precision);
  auto const parts = trainer.checkpoint_parts({});
  auto const buffer_bytes = c.checkpoint.buffer_mb << 20;
  if (model.checkpoint)
    io::load_parts(world, *model.checkpoint, element, parts, buffer_bytes);
  else
    io::load_weights(world, *model.weights, element, parts, buffer_bytes);
  return work(trainer);
}

/// Opens the model, asks prepare(world, model) for the config::Reading (collective), loads the weights and calls
/// work(trainer, model).
template <class Prepare, class Work>
int with_stored_model(int argc, char** argv, ModelLine const& line, Prepare const& prepare, Work const& work) {
  return with_ranks(argc, argv, [&](comm::Communicator& world) {
    linalg::set_blas_threads(device::host_threads());
    auto model = open_stored_model(world, line);
    config::Reading wanted = prepare(world, model);
    wanted.ranks = world.size();
    auto const c =
        comm::agree(world, "use the input in the checkpoint", [&] { return reading_config(model, line, wanted); });
    return engine::with_policy(c, [&](auto policy) {
      return with_weights<decltype(policy)>(c, model, world, [&](auto& trainer) { return work(trainer, model); });
    });
  });
}

}  // namespace p3d::app
