// SPDX-License-Identifier: Apache-2.0
// The dynamic loss scale: its rule, and its state as text in checkpoints.
#include <p3d/optim/loss_scale.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>
#include <system_error>

namespace p3d::optim {

namespace {
/// The scale of a run that begins.
double first_scale(config::PrecisionOptions const& o) {
  switch (o.loss_scaling) {
    case config::LossScaling::none: return 1.0;
    case config::LossScaling::dynamic: return o.loss_scale_initial;
    case config::LossScaling::fixed: break;
  }
  return o.loss_scale;
}
}  // namespace

std::string to_string(LossScaleState const& s) {
  return fmt::format("scale={} clean_steps={} overflows={} skipped={}", s.scale, s.clean_steps, s.overflows, s.skipped);
}

namespace {

/// The text before the count, where only skipped steps are stored.
constexpr std::string_view only_skipped = "skipped=";

/// The error for a text that is no state of a loss scale.
base::Error wrong_text(std::string const& text) {
  return base::Error(
      {.expected = "the state of a loss scale, such as \"scale=65536 clean_steps=12 overflows=0 skipped=3\"",
       .found = fmt::format("\"{}\"", text.substr(0, 80)),
       .where = "attribute loss_scale of a checkpoint",
       .fix = "use another checkpoint"},
      base::ExitCode::bad_input);
}

}  // namespace

LossScaleState parse_loss_scale(std::string const& text) {
  LossScaleState s;
  std::istringstream in(text);
  auto const read = [&](std::string const& name, auto& value) {
    std::string word;
    std::getline(in >> std::ws, word, '=');
    return word == name && static_cast<bool>(in >> value);
  };
  bool const good = read("scale", s.scale) && read("clean_steps", s.clean_steps) && read("overflows", s.overflows) &&
                    read("skipped", s.skipped) && s.scale > 0.0 && std::isfinite(s.scale) && s.clean_steps >= 0 &&
                    s.overflows >= 0 && s.skipped >= 0;
  if (!good) throw wrong_text(text);
  return s;
}

std::string stored_loss_scale(LossScaleState const& state, config::LossScaling scaling) {
  if (scaling == config::LossScaling::dynamic) return to_string(state);
  return state.skipped > 0 ? fmt::format("{}{}", only_skipped, state.skipped) : "";
}

LossScaleState resumed_loss_scale(LossScaleState fresh, config::LossScaling scaling, std::string const& stored) {
  if (stored.empty()) return fresh;
  if (!stored.starts_with(only_skipped)) {
    auto const state = parse_loss_scale(stored);
    if (scaling == config::LossScaling::dynamic) return state;
    fresh.skipped = state.skipped;
    return fresh;
  }
  auto const* const end = stored.data() + stored.size();
  auto const [rest, problem] = std::from_chars(stored.data() + only_skipped.size(), end, fresh.skipped);
  if (problem != std::errc{} || rest != end || fresh.skipped < 0) throw wrong_text(stored);
  return fresh;
}

LossScaler::LossScaler(config::PrecisionOptions const& options) : options_(options) {
  state_.scale = first_scale(options);
}

bool LossScaler::update(bool overflow) {
  auto& s = state_;
  if (overflow) {
    bool const helps = skips() && s.scale > options_.loss_scale_floor;
    ++s.skipped;
    s.clean_steps = 0;
    if (++s.overflows >= options_.loss_scale_hysteresis && skips())
      s.scale = std::max(s.scale * options_.loss_scale_backoff, options_.loss_scale_floor);
    return helps;
  }
  if (!skips() || ++s.clean_steps < options_.loss_scale_interval) return true;
  s.clean_steps = 0;
  s.overflows = 0;
  double const larger = s.scale * options_.loss_scale_growth;
  if (std::isfinite(static_cast<float>(larger))) s.scale = larger;
  return true;
}

}  // namespace p3d::optim
