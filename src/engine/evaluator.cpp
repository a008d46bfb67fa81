// SPDX-License-Identifier: Apache-2.0
#include "evaluator.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/engine/run_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace p3d::engine {

Evaluator::Evaluator(config::Config const& config, BatchLoader const& loader, comm::Mesh& mesh, Forward forward)
    : config_(&config), loader_(&loader), mesh_(&mesh), forward_(std::move(forward)) {}

std::vector<std::int64_t> Evaluator::sum_over_replicas(std::vector<std::int64_t> counted) {
  mesh_->along("dp").all_reduce(counted.data(), std::ssize(counted), comm::Type::int64, comm::Reduction::sum).wait();
  return counted;
}

std::vector<std::int64_t> Evaluator::count_targets(SampleSource const& samples) {
  if (loader_->sampler().masks()) return sum_over_replicas(loader_->count_targets(samples));
  std::vector<std::int64_t> out;  // block k has none for the last k tokens of a sample
  for (std::int64_t k = 0; k <= (samples.predicts ? config_->model.mtp.depth : 0); ++k)
    out.push_back(config_->batch.global * std::max<std::int64_t>(0, config_->model.seq_len - k));
  return out;
}

namespace {
/// The mean of losses over the targets that count. Without any there is no mean, and 0 would look like a perfect model.
double mean_loss(double sum, std::int64_t targets, data::TokenSource const& source) {
  if (targets > 0) return base::without_sign_of_nan(sum / static_cast<double>(targets));
  base::refuse({.expected = "a token to predict in the windows that are evaluated",
                .found = "none: no target counts behind the end of a document (data.eod_mask_loss, data.pack)",
                .where = source.describe(),
                .fix = "evaluate it on other text: p3d eval --file, or for a run data.path and data.split"});
}
}  // namespace

double Evaluator::evaluate(std::int64_t batches, std::function<bool()> const& stop) {
  double sum = 0.0;
  std::int64_t counted = 0;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    if (stop()) return std::numeric_limits<double>::quiet_NaN();
    auto const samples = loader_->evaluation(batch);
    counted += count_targets(samples).front();
    sum += forward_(samples);
  }
  return mean_loss(collectives::all_reduce(mesh_->world(), sum), counted, loader_->source());
}

Score Evaluator::score(Windows const& windows, ScoreOptions const& options) {
  Score out;
  out.windows = options.most > 0 ? std::min(options.most, windows.count) : windows.count;
  bool const masks = loader_->sampler().masks();
  double sum = 0.0;
  std::int64_t counted = 0;
  SampleSource samples;
  // The last batch is filled up with windows, and a window with tokens, that count nothing.
  samples.read = [&](std::int64_t number, std::span<int> in, std::span<int> target, std::span<int> documents) {
    auto const real = number < out.windows ? static_cast<std::size_t>(windows.length) : 0;
    std::ranges::fill(in.subspan(real), 0);
    std::ranges::fill(target.subspan(real), -1);
    if (!documents.empty()) std::ranges::fill(documents.subspan(real), static_cast<int>(real));
    if (real > 0)
      windows.read(number, in.first(real), target.first(real), documents.empty() ? documents : documents.first(real));
  };
  samples.length = [&](std::int64_t number) { return number < out.windows ? windows.length_of(number) : 1; };
  for (std::int64_t batch = 0; batch * config_->batch.global < out.windows; ++batch) {
    samples.first = [&](int microbatch) { return first_sample(*config_, batch, loader_->replica(), microbatch); };
    if (masks) counted += loader_->count_targets(samples).front();
    sum += forward_(samples);
    if (options.progress) options.progress(std::min((batch + 1) * config_->batch.global, out.windows), out.windows);
  }
  counted = masks ? sum_over_replicas({counted}).front() : out.windows * windows.length;
  out.loss = mean_loss(collectives::all_reduce(mesh_->world(), sum), counted, *windows.source);
  return out;
}

namespace {
[[noreturn]] void refuse_short(std::int64_t window, std::int64_t found, data::TokenSource const& source) {
  base::refuse(
      {.expected = fmt::format("at least {} tokens to evaluate: a window of {}, and a target", window + 1, window),
       .found = fmt::format("{}", found),
       .where = source.describe(),
       .fix = "give a longer text, or shorter windows"});
}
}  // namespace

Score Evaluator::score(std::vector<layout::Range> const& parts, data::TokenSource const& source,
                       ScoreOptions const& options) {
  auto const& sampler = loader_->sampler();
  P3D_REQUIRE(!sampler.varies(), "the windows of a text have one length");
  auto const window = options.window > 0 ? options.window : config_->model.seq_len;
  P3D_REQUIRE(window <= config_->model.seq_len, "a window is a sequence of the model at most");
  std::vector<std::int64_t> first_windows{0};  // of each part, and the end
  std::int64_t tokens = 0;
  for (auto const& part : parts) {
    tokens += part.size();
    first_windows.push_back(first_windows.back() + std::max<std::int64_t>(0, part.size() - 1) / window);
  }
  if (first_windows.back() == 0) refuse_short(window, tokens, source);
  Windows windows;
  windows.source = &source;
  windows.count = first_windows.back();
  windows.length = window;
  windows.read = [&](std::int64_t number, std::span<int> in, std::span<int> target, std::span<int> documents) {
    auto const next = std::upper_bound(first_windows.begin(), first_windows.end(), number);
    auto const& part = parts[static_cast<std::size_t>(next - first_windows.begin() - 1)];
    sampler.window(source, part.begin + (number - *(next - 1)) * window, in, target, documents);
  };
  return score(windows, options);
}

Score Evaluator::score_validation(ScoreOptions const& options) {
  auto const& sampler = loader_->sampler();
  Windows windows;
  windows.source = &loader_->source();
  windows.count = sampler.num_eval_windows();
  windows.length = config_->model.seq_len;
  P3D_REQUIRE(options.window == 0 || options.window == windows.length, "the samples are those of training");
  if (windows.count == 0) {
    std::int64_t tokens = 0;
    for (auto const& part : sampler.held_out()) tokens += part.size();
    refuse_short(windows.length, tokens, loader_->source());
  }
  windows.read = [&](std::int64_t number, std::span<int> in, std::span<int> target, std::span<int> documents) {
    sampler.held_out(number, in, target, documents);
  };
  windows.length_of = [&](std::int64_t number) { return sampler.held_out_length(number); };
  return score(windows, options);
}

}  // namespace p3d::engine
