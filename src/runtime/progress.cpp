#include <p3d/runtime/progress.hpp>

#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <cstdio>

namespace p3d::runtime {

Progress::Progress(std::int64_t steps, std::int64_t log_every, bool terminal)
    : steps_(steps), log_every_(log_every), terminal_(terminal) {}

std::string Progress::line(ProgressPoint const& p) const {
  auto text = fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:>7} tokens/s", p.step,
                          std::to_string(steps_).size(), steps_, p.loss, p.grad_norm, p.lr, base::human_count(p.tokens_per_s));
  if (p.eval_loss) text += fmt::format("  held-out loss {:.4f}", *p.eval_loss);
  if (p.step < steps_) {
    double const left = watch_.seconds() / static_cast<double>(done_) * static_cast<double>(steps_ - p.step);
    text += fmt::format("  {} left", base::human_seconds(left));
  }
  return text;
}

void Progress::step(ProgressPoint const& p) {
  if (base::log_rank() != 0) return;
  ++done_;
  bool const report = p.step == 1 || p.step == steps_ || p.step % log_every_ == 0 || p.eval_loss.has_value();
  if (terminal_) {
    // Clear to the end of the line; reported steps stay on the screen.
    std::fputs(fmt::format("\r{}\x1b[K{}", line(p), report ? "\n" : "").c_str(), stdout);
    std::fflush(stdout);
  } else if (report) {
    base::log_root(line(p));
  }
}

void Progress::finish() {
  if (terminal_ && base::log_rank() == 0) std::fputs("\r\x1b[K", stdout);
}

}  // namespace p3d::runtime
