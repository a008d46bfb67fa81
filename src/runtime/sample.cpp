// Text from the model: the tail of what there is so far is run forward, and the next token is drawn from the last logits.

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::runtime {

namespace {

/// Draws a token with probabilities softmax(logits / temperature), u uniform in (0, 1).
int draw(std::vector<double> const& logits, double temperature, double u) {
  auto const top = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0.0) return static_cast<int>(top - logits.begin());
  std::vector<double> p(logits.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp((logits[i] - *top) / temperature);
  double reach = u * sum;
  for (std::size_t i = 0; i < p.size(); ++i) {
    reach -= p[i];
    if (reach <= 0.0) return static_cast<int>(i);
  }
  return static_cast<int>(top - logits.begin());
}

}  // namespace

template <class T>
std::string Trainer<T>::sample(std::string const& prompt, std::int64_t tokens, double temperature) {
  auto& s = *state_;
  std::vector<int> text;
  for (char c : prompt) text.push_back(static_cast<unsigned char>(c));
  if (text.empty()) text.push_back('\n');
  auto const key = base::random_key(s.config.run.seed, "sample");
  auto const seq = s.config.model.seq_len;
  auto const vocab = static_cast<std::size_t>(s.config.model.vocab_size);
  int const last_stage = s.plan.stages.num_stages() - 1;
  // The rank that draws: the first of those that hold the last stage. The others take its word.
  int const source = s.plan.grid.rank({0, 0, s.plan.stages.pipeline_rank(last_stage)});

  for (std::int64_t i = 0; i < tokens; ++i) {
    auto const length = std::min<std::int64_t>(seq, static_cast<std::int64_t>(text.size()));
    // Positions after the text are filled with zeros: attention is causal, so they change nothing before them.
    std::fill(s.inputs.begin(), s.inputs.end(), 0);
    std::copy(text.end() - length, text.end(), s.inputs.begin());
    std::fill(s.targets.begin(), s.targets.end(), -1);
    Hooks hooks;
    int slot_used = 0;
    hooks.load = [&](int stage, int slot, int) {
      slot_used = slot;
      s.units.at(stage)->stage.load(slot, {0, s.config.batch.micro, seq}, s.inputs, s.targets);
    };
    s.executor->run(s.plan.probe, s.steps_done, false, 0.0, hooks);

    std::int32_t next = 0;
    if (auto const unit = s.units.find(last_stage); unit != s.units.end()) {
      // One row of logits, put together over tp: vocab numbers.
      std::vector<double> row(vocab, 0.0);
      auto const local = unit->second->stage.logits(slot_used, length - 1);
      std::copy(local.begin(), local.end(), row.begin() + unit->second->stage.vocab().begin);
      s.tp.comm->all_reduce(row.data(), static_cast<std::int64_t>(vocab), comm::Type::float64, comm::Reduction::sum).wait();
      auto const words = base::random_block(key, 0, static_cast<std::uint64_t>(i));
      next = draw(row, temperature, base::uniform_from(words.w[0], words.w[1]));
    }
    s.mesh.world().broadcast(&next, 1, comm::Type::int32, source).wait();
    text.push_back(next);
  }
  std::string out;
  for (auto it = text.begin() + static_cast<std::ptrdiff_t>(prompt.empty() ? 1 : prompt.size()); it != text.end(); ++it) {
    out.push_back(static_cast<char>(*it & 0xff));
  }
  return out;
}

template std::string Trainer<float>::sample(std::string const&, std::int64_t, double);
template std::string Trainer<double>::sample(std::string const&, std::int64_t, double);

}  // namespace p3d::runtime
