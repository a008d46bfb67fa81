// SPDX-License-Identifier: Apache-2.0
#include <p3d/report/progress.hpp>

#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <vector>

namespace p3d::report {

Progress::Progress(std::int64_t steps, std::int64_t log_every, int columns)
    : steps_(steps), log_every_(log_every), columns_(columns) {}

// The most important fields come first: a narrow terminal loses those at the end.
std::string Progress::line(ProgressPoint const& p, std::size_t width) const {
  double const speed = recent_seconds_ > 0 ? recent_tokens_ / recent_seconds_ : 0.0;
  bool const first = done_ == 1;
  double const each = first ? first_seconds_ : (watch_.seconds() - first_seconds_) / static_cast<double>(done_ - 1);
  auto const left = (first ? "< " : "") + base::human_seconds(each * static_cast<double>(steps_ - p.step));
  std::vector<std::string> fields{
      fmt::format("step {:>{}}/{}", p.step, std::to_string(steps_).size(), steps_),
      fmt::format("loss {:.4f}", p.loss),
      fmt::format("{:>6} tokens/s", base::human_count(speed)),
      p.step < steps_ ? fmt::format("{:>11} left", left) : fmt::format("{:>16}", "done"),
      fmt::format("norm {:.3f}", p.grad_norm),
      fmt::format("lr {:.2e}", p.lr),
  };
  if (p.mtp_loss) fields.insert(fields.begin() + 2, fmt::format("mtp {:.4f}", *p.mtp_loss));
  if (p.eval_loss) fields.push_back(fmt::format("validation loss {:.4f}", *p.eval_loss));
  auto text = fields[0];
  for (std::size_t i = 1; i < fields.size() && text.size() + 2 + fields[i].size() <= width; ++i)
    text += "  " + fields[i];
  return text.substr(0, width);
}

void Progress::step(ProgressPoint const& p) {
  // Each step multiplies the weight of the steps before it by 0.9: the mean is of about the last ten steps, and needs
  // no list.
  constexpr double memory = 0.9;
  if (++done_ == 1) first_seconds_ = watch_.seconds();
  recent_tokens_ = memory * recent_tokens_ + p.tokens;
  recent_seconds_ = memory * recent_seconds_ + p.seconds;
  bool const stays = p.step == steps_ || p.eval_loss.has_value();
  if (stays || (columns_ == 0 && (p.step == 1 || p.step % log_every_ == 0))) {
    base::log_root(line(p, std::string::npos));
  } else if (columns_ > 0) {
    base::status_root(line(p, static_cast<std::size_t>(columns_ - 1)));
  }
}

}  // namespace p3d::report
