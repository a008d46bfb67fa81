// SPDX-License-Identifier: Apache-2.0
// Text from the model, token after token, with the keys and values of what was read before. All ranks of a pipeline
// run one pass for the newest tokens of all texts together; the first rank of the last stage draws, and one sum over
// the world tells everybody. Example: with 2 replicas and 5 texts, replica 0 grows texts 0, 2 and 4, replica 1 the
// others.

#include "sample.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/model/decoder.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "draw.hpp"
#include "text_batch.hpp"

namespace p3d::engine {

namespace {

/// The stages of this rank as decoders. One pass goes through all stages of the pipeline, on all of its ranks.
template <class P>
class Generator {
public:
  using S = typename P::Storage;
  Generator(config::Config const& c, RunPlan const& plan, std::map<int, model::WeightProvider<P>*> weights,
            comm::Communicator& pipeline, parallel::TensorParallel const& tp, parallel::ExpertParallel& experts,
            std::int64_t texts, std::int64_t capacity)
      : plan_(&plan),
        weights_(std::move(weights)),
        pipeline_(&pipeline),
        tp_{tp.exec, tp.comm, false},
        scratch_(c, std::max(texts, capacity), &experts),
        capacity_(capacity) {
    for (auto const& [stage, provider] : weights_)
      decoders_.try_emplace(stage, c, plan.stages, stage, tp_, scratch_, texts, capacity);
  }

  /// Has the model read `rows`. On the ranks of the last stage: the logits after the last row of each text, whole rows
  /// of `vocab` numbers in the order of the rows; elsewhere nothing, or the same.
  std::vector<double> read(model::DecodedRows const& rows, std::int64_t vocab) {
    scratch_.begin(tp_.exec, rows, capacity_);
    std::vector<double> logits;
    std::vector<int> wanted(static_cast<std::size_t>(rows.begin ? 1 : rows.size()), static_cast<int>(rows.size()) - 1);
    if (!rows.begin) std::iota(wanted.begin(), wanted.end(), 0);
    // One microbatch goes from stage to stage: a stage receives when it runs, and sends at once.
    schedule::Program const& program = plan_->probe;
    for (auto const& action : program.ranks[static_cast<std::size_t>(pipeline_->rank())]) {
      using schedule::Op;
      auto& provider = *weights_.at(action.stage);
      switch (action.op) {
        case Op::forward:
          forward(action, provider.weights(action.version), wanted);
          if (plan_->stages.has_head(action.stage))
            logits = whole_logits(action, provider.weights(action.version), wanted.size(), vocab);
          break;
        case Op::embed_forward: embed(action, provider.weights(action.version)); break;
        case Op::head_forward: {
          auto const final_rows = decoders_.at(action.stage).final_rows(static_cast<std::int64_t>(wanted.size()));
          int const last = program.stage_rank.back();
          collectives::start_broadcast<S>(tp_.exec, *pipeline_, device::flat(final_rows), last).wait();
          logits = whole_logits(action, provider.weights(action.version), wanted.size(), vocab);
          pipeline_
              ->all_reduce(logits.data(), static_cast<std::int64_t>(logits.size()), comm::Type::float64,
                           comm::Reduction::sum)
              .wait();
          break;
        }
        case Op::gather_weights: provider.gather(action.version); break;
        case Op::release_weights: provider.release(action.version); break;
        case Op::offload_weights: provider.offload(action.version); break;
        case Op::reload_weights: provider.reload(action.version); break;
        case Op::backward:
        case Op::backward_input:
        case Op::backward_weight:
        case Op::embed_backward:
        case Op::reduce_gradients:
        case Op::reduce_scatter_gradients:
        case Op::optimizer_step:
        case Op::stage_step: P3D_REQUIRE(false, "a sample trains nothing"); break;
        case Op::send_activation:
        case Op::recv_activation:
        case Op::send_gradient:
        case Op::recv_gradient: break;  // forward() does that
        case Op::head_backward: break;  // there is no loss
        case Op::offload_activations:
        case Op::reload_activations: break;  // the slots are the decoder's
      }
    }
    return logits;
  }

private:
  /// After the last stage its final rows are those `wanted`.
  void forward(schedule::Action const& action, model::StageWeights<P> const& w, std::vector<int> const& wanted) {
    auto const& stages = plan_->stages;
    int const stage = action.stage, last = stages.num_stages() - 1;
    auto const elsewhere = [&](int other) { return stages.pipeline_rank(other) != pipeline_->rank(); };
    if (stage > 0 && elsewhere(stage - 1))
      collectives::start_recv<S>(tp_.exec, *pipeline_, scratch_.x(), stages.pipeline_rank(stage - 1), stage).wait();
    auto& decoder = decoders_.at(stage);
    decoder.forward(w);
    if (stage == last) {
      decoder.finish(w, wanted);
    } else if (elsewhere(stage + 1)) {
      collectives::start_send<S>(tp_.exec, *pipeline_, scratch_.x(), stages.pipeline_rank(stage + 1), stage + 1).wait();
    }
  }

  void embed(schedule::Action const& action, model::StageWeights<P> const& w) {
    decoders_.at(action.stage).embed(w);
    collectives::all_reduce<S>(tp_.exec, *pipeline_, device::flat(scratch_.x()));
  }

  /// Of the final rows, zeros for tokens of other ranks of the pipeline.
  std::vector<double> whole_logits(schedule::Action const& action, model::StageWeights<P> const& w, std::size_t rows,
                                   std::int64_t vocab) {
    auto& decoder = decoders_.at(action.stage);
    auto const local = decoder.logits(w, static_cast<std::int64_t>(rows));
    auto const width = decoder.vocab().valid_rows;
    std::vector<double> whole(rows * static_cast<std::size_t>(vocab), 0.0);
    for (std::size_t i = 0; i < rows; ++i) {
      auto const from = local.begin() + static_cast<std::ptrdiff_t>(i) * width;
      std::copy(from, from + width, whole.begin() + static_cast<std::ptrdiff_t>(i) * vocab + decoder.vocab().begin);
    }
    if (tp_.size() > 1)
      tp_.comm
          ->all_reduce(whole.data(), static_cast<std::int64_t>(whole.size()), comm::Type::float64, comm::Reduction::sum)
          .wait();
    return whole;
  }

  RunPlan const* plan_;
  std::map<int, model::WeightProvider<P>*> weights_;
  comm::Communicator* pipeline_;
  parallel::TensorParallel tp_;
  model::DecoderScratch<P> scratch_;
  std::map<int, model::Decoder<P>> decoders_;
  std::int64_t capacity_;
};

}  // namespace

void require_tokens(std::vector<std::vector<int>> const& prompts, std::int64_t vocab) {
  for (auto const& prompt : prompts) {
    P3D_REQUIRE(!prompt.empty(), "a prompt has a token");
    auto const bad = std::find_if(prompt.begin(), prompt.end(), [=](int t) { return t < 0 || t >= vocab; });
    if (bad == prompt.end()) continue;
    base::refuse({.expected = fmt::format("a prompt of tokens below model.vocab_size = {}", vocab),
                  .found = fmt::format("token {} at place {} of the prompt", *bad, bad - prompt.begin() + 1),
                  .where = "the prompt",
                  .fix = "leave out what the model has no token for, or use the model's own tokenizer"});
  }
}

template <class P>
std::vector<std::vector<int>> sample(RankContext& rank, RankMemory<P>& memory,
                                     std::vector<std::vector<int>> const& prompts, SampleOptions const& options) {
  auto const vocab = rank.config.model.vocab_size;
  rank.stop.early = false;
  std::vector<std::vector<int>> drawn(prompts.size());
  if (prompts.empty() || options.tokens <= 0) return drawn;

  std::size_t longest = 0;
  for (auto const& prompt : prompts) longest = std::max(longest, prompt.size());
  auto const capacity = std::min(rank.config.model.seq_len, static_cast<std::int64_t>(longest) + options.tokens);
  auto const& model = rank.config.model;
  auto const original = model.rope_scaling == config::RopeScaling::longrope ? model.rope_original_seq_len : 0;
  // Replicas share the texts; not where a stage's weights or experts are on all of them: then all make every pass.
  bool const together = rank.config.memory.divides() || rank.config.memory.moves_weights() ||
                        layout::exchanges_across(rank.plan.grid, layout::Axis::dp);
  auto const replicas = static_cast<std::size_t>(together ? 1 : rank.config.parallel.dp);
  auto const mine = replicas == 1 ? 0 : static_cast<std::size_t>(rank.here.dp);
  auto const each = (prompts.size() + replicas - 1) / replicas;  // texts of a replica
  auto const batch = std::min(each, static_cast<std::size_t>(std::max<std::int64_t>(1, options.batch)));
  int const last_stage = rank.plan.stages.num_stages() - 1;
  auto elsewhere = rank.here;  // the rank of a replica that draws is the first of those that hold the last stage
  elsewhere.pp -= rank.plan.stages.pipeline_rank(last_stage);
  if (replicas > 1) elsewhere.dp = 0;
  bool const draws = elsewhere.zero(layout::dense_axes);

  std::map<int, model::WeightProvider<P>*> weights;
  for (auto& [number, unit] : memory.units()) weights[number] = unit->weights.get();
  auto const key = base::random_key(options.seed, "sample");
  auto const width = static_cast<std::size_t>(vocab);
  auto const at = [&](std::size_t place) { return static_cast<std::ptrdiff_t>(place * width); };
  auto const choice = static_cast<std::size_t>(options.vocabulary > 0 ? std::min(vocab, options.vocabulary) : vocab);
  Generator<P> generator(rank.config, rank.plan, std::move(weights), rank.mesh.along("pp"), rank.tp, rank.experts,
                         static_cast<std::int64_t>(batch), capacity);
  for (std::size_t begin = 0; begin < each && !rank.stop.early; begin += batch) {
    // Place b of replica r has text (begin + b) * replicas + r.
    auto const size = std::min(batch, each - begin);
    auto const number = [&](std::size_t place) { return begin * replicas + place; };
    std::vector<GrowingText> texts;  // of all replicas, by place b * replicas + r
    for (std::size_t place = 0; place < size * replicas; ++place) {
      bool const exists = number(place) < prompts.size();
      texts.emplace_back(exists ? prompts[number(place)] : std::vector<int>{}, capacity, original);
      texts.back().done = !exists;
    }
    auto const all_done = [&] { return std::all_of(texts.begin(), texts.end(), [](auto& t) { return t.done; }); };
    for (std::int64_t i = 0; i < options.tokens && !all_done() && !rank.stop.early; ++i) {
      // The tokens of all texts, and whether any rank was asked to stop.
      std::vector<std::int32_t> words(texts.size() + 1, 0);
      std::vector<double> rows_told(options.observe ? texts.size() * width : 0, 0.0);
      auto const read = [&](model::DecodedRows const& rows, std::vector<std::size_t> const& places) {
        auto const logits = generator.read(rows, vocab);
        for (std::size_t k = 0; k < places.size() && draws; ++k) {
          auto const r = base::random_block(key, number(places[k]), static_cast<std::uint64_t>(i));
          auto const row = std::span<double const>(logits).subspan(k * width, choice);
          if (options.observe) std::copy(row.begin(), row.end(), rows_told.begin() + at(places[k]));
          words[places[k]] = draw(row, options, base::uniform_from(r.w[0], r.w[1]));
        }
      };
      model::DecodedRows next;  // the newest tokens of those that go on, together
      std::vector<std::size_t> places;
      for (std::size_t b = 0; b < size; ++b) {
        auto const place = b * replicas + mine;
        auto& text = texts[place];
        if (text.done) continue;
        if (text.continues()) {
          text.read(static_cast<int>(b), next);
          places.push_back(place);
        } else {
          model::DecodedRows beginning;
          beginning.begin = true;
          text.read(static_cast<int>(b), beginning);
          read(beginning, {place});
        }
      }
      if (next.size() > 0) read(next, places);
      words.back() = rank.stop.here() ? 1 : 0;
      rank.mesh.world()
          .all_reduce(words.data(), static_cast<std::int64_t>(words.size()), comm::Type::int32, comm::Reduction::max)
          .wait();
      if (options.observe)
        rank.mesh.world()
            .all_reduce(rows_told.data(), static_cast<std::int64_t>(rows_told.size()), comm::Type::float64,
                        comm::Reduction::sum)
            .wait();
      for (std::size_t place = 0; place < texts.size(); ++place) {
        if (texts[place].done) continue;
        if (options.observe) options.observe(number(place), std::span(rows_told).subspan(width * place, choice));
        auto& out = drawn[number(place)];
        out.push_back(words[place]);
        texts[place].add(words[place]);
        auto const& stops = options.stop_tokens;
        texts[place].done = std::find(stops.begin(), stops.end(), words[place]) != stops.end() ||
                            (options.complete && options.complete(number(place), out));
      }
      rank.stop.early = words.back() != 0;
    }
  }
  return drawn;
}

#define P3D_INSTANTIATE(P)                                                                                             \
  template std::vector<std::vector<int>> sample<P>(RankContext&, RankMemory<P>&, std::vector<std::vector<int>> const&, \
                                                   SampleOptions const&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
