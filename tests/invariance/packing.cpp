// SPDX-License-Identifier: Apache-2.0
// data.pack: loss and gradients of a packed global batch are the sums over its documents, each of which is run alone,
// on one rank, as the only sample of a model of its length. Documents of one token, of a window, of one token more,
// longer ones, and such that end inside a rank's part of a sequence.
//
//   mpiexec -n N invariance_packing [--sabotage]
//
// Exit code 1 when the loss is off by more than 1e-12, or a gradient by more than 1e-12 (see deviations()).

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/text/indexed_dataset_writer.hpp>
#include <p3d/data/sampler.hpp>

#include <support/temp_dir.hpp>
#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using Words = std::vector<std::string>;
using Tokens = std::vector<std::int32_t>;

constexpr int seq_len = 48, samples = 8;

void write(std::string const& prefix, std::vector<Tokens> const& documents) {
  text::IndexedDatasetWriter writer(prefix, text::TokenType::u16);
  for (auto const& d : documents) writer.add_document(d);
  writer.finish();
}

std::vector<Tokens> make_documents() {
  std::mt19937 random(3);
  std::vector<Tokens> out;
  constexpr int chosen[]{1, 2, 3, 48, 49, 120, 1, 5, 47, 97, 1, 30, 17};
  for (int d = 0; d < 40; ++d) {
    auto& tokens = out.emplace_back();
    auto const length = chosen[d % 13];
    for (int i = 0; i < length; ++i) tokens.push_back(static_cast<std::int32_t>(random() % 61));
  }
  return out;
}

config::Config make_config(Words const& data, Words const& model, Words const& layout, int ranks) {
  Words const words{"data.format=megatron", "data.split=0",      "run.eval_batches=0", "run.precision=fp64",
                    "model.vocab_size=61",  "model.layers=2",    "model.hidden=32",    "run.steps=1",
                    "model.heads=8",        "optimizer.lr=1e-3", "comm.bucket_mb=0.02"};
  return p3d::test::config_of(p3d::test::joined({words, data, model, layout}), ranks);
}

Words data_words(std::string const& path, int length) {
  return {"data.path=\"" + path + "\"", fmt::format("model.seq_len={}", length)};
}

/// What of a document lies in one sample, and the target behind it if there is one.
std::vector<Tokens> pieces(config::Config const& c) {
  auto const source = data::make_token_source(c);
  data::Sampler const sampler(*source, c);
  std::vector<Tokens> out;
  std::vector<int> in(seq_len), target(seq_len), documents(seq_len);
  for (int s = 0; s < samples; ++s) {
    sampler.train(s, in, target, documents);
    for (std::size_t i = 0; i < in.size();) {
      auto& piece = out.emplace_back();
      auto const first = i;
      for (; i < in.size() && documents[i] == static_cast<int>(first); ++i) piece.push_back(in[i]);
      if (target[i - 1] >= 0) piece.push_back(target[i - 1]);
    }
  }
  return out;
}

/// Sums over documents, by the number of targets.
struct Sums {
  double loss = 0.0, targets = 0.0;
  std::map<std::string, std::vector<double>> gradients;

  /// Adds the mean over so many targets; the gradients less those of `without`, if there is one.
  void add(int count, double mean, test::RunResult const& run, test::RunResult const* without = nullptr) {
    loss += count * mean;
    targets += count;
    for (auto const& [name, values] : run.gradients) {
      auto& sum = gradients[name];
      if (sum.size() < values.size()) sum.resize(values.size());  // positions beyond have none
      for (std::size_t i = 0; i < values.size(); ++i)
        sum[i] += count * (values[i] - (without ? without->gradients.at(name)[i] : 0.0));
    }
  }
  void add_means_to(test::RunResult& out) const {
    out.losses.push_back(loss / targets);
    for (auto const& [name, values] : gradients) {
      auto& mean = out.gradients[name];
      if (mean.size() < values.size()) mean.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) mean[i] += values[i] / targets;
    }
  }
};

/// Each piece alone: the sums, by the number of targets. `moved`: a piece loses its last target to the next one. A
/// block of multi-token prediction has one target less than the model; its gradients are the difference that the weight
/// of its loss makes.
test::RunResult run_alone(std::string const& folder, std::vector<Tokens> documents, Words const& model, bool moved) {
  if (moved) {
    documents[1].insert(documents[1].begin(), documents[0].back());
    documents[0].pop_back();
  }
  Sums of_model, of_block;
  for (auto const& d : documents) {
    if (d.size() < 2) continue;  // nothing to predict
    auto const path = folder + "/alone";
    write(path, {d});
    auto const length = static_cast<int>(d.size()) - 1;
    auto const train = [&](Words const& words) {
      return test::train(make_config(data_words(path, length), test::joined({model, words}), {}, 1),
                         comm::Communicator::self(), 1);
    };
    bool const predicts = make_config(data_words(path, seq_len), model, {}, 1).model.mtp.on();
    if (!predicts) {
      auto const run = train({});
      of_model.add(length, run.losses[0], run);
    } else if (length < 2) {  // too short for a block
      auto const run = train({"model.mtp.depth=0", "model.mtp.loss_weight=0.3"});
      of_model.add(length, run.losses[0], run);
    } else {
      auto const run = train({}), without = train({"model.mtp.loss_weight=0.0"});
      of_model.add(length, run.losses[0], without);
      of_block.add(length - 1, run.losses[1], run, &without);
    }
  }
  test::RunResult sums;
  of_model.add_means_to(sums);
  if (of_block.targets > 0) of_block.add_means_to(sums);
  return sums;
}

std::vector<Words> layouts(int ranks) {
  if (ranks == 1) return {{"batch.micro=1"}, {"batch.micro=4", "memory.recompute=full"}};
  std::vector<Words> out;
  for (char const* order : {"zigzag", "striped", "contiguous"})
    for (std::string const exchange : {"ring", "gather", "all_to_all", "[2, 2]"}) {
      if (exchange == "[2, 2]" && ranks != 4) continue;
      out.push_back({fmt::format("parallel.cp={}", ranks), std::string("context.order=") + order,
                     "context.exchange=" + exchange, "batch.micro=2"});
    }
  out.push_back({fmt::format("parallel.dp={}", ranks), "batch.micro=2"});
  out.push_back({fmt::format("parallel.tp={}", ranks), "parallel.sequence=true"});
  out.push_back({"parallel.pp=2", fmt::format("parallel.cp={}", ranks / 2), "pipeline.schedule=zb_h1"});
  return out;
}

int run(test::Options const& o) {
  auto world = comm::Communicator::world();
  test::TempDir const own;  // of each rank, for what it runs alone
  test::SharedFolder const shared(world);
  auto const path = shared / "documents";
  if (world.rank() == 0) write(path, make_documents());
  world.barrier().wait();
  auto data = data_words(path, seq_len);
  data.insert(data.end(), {"data.pack=true", fmt::format("batch.global={}", samples)});
  test::Tally tally(world.size(), 1e-12, 1e-12);
  for (Words const& model : {Words{"model.preset=llama-tiny", "model.kv_heads=4", "model.ffn=48"},
                             Words{"model.preset=gpt2-tiny", "model.kv_heads=8", "model.window=[7, 0]"},
                             Words{"model.preset=llama-tiny", "model.kv_heads=8", "model.ffn=32", "model.mtp.depth=1",
                                   "model.mtp.loss_weight=0.6"}}) {
    auto const documents = pieces(make_config(data, model, {}, 1));
    auto const alone = run_alone(own.path().string(), documents, model, o.sabotage);
    std::size_t shortest = seq_len, longest = 0;
    for (auto const& d : documents) {
      shortest = std::min(shortest, d.size());
      longest = std::max(longest, d.size());
    }
    P3D_REQUIRE(shortest == 1 && longest == seq_len + 1, "documents of one token, and some that a window cuts");
    for (auto const& layout : layouts(world.size())) {
      auto packed = test::train(make_config(data, model, layout, world.size()), world, 1);
      auto reference = alone;
      for (auto& [key, values] : reference.gradients) values.resize(packed.gradients.at(key).size());
      tally.compare(reference, packed,
                    fmt::format("{:<24} {} documents, {}:", model.front(), documents.size(), fmt::join(layout, " ")));
    }
  }
  return tally.finish();
}

}  // namespace

int main(int argc, char** argv) { return p3d::test::run_main(argc, argv, {"--sabotage"}, run); }
