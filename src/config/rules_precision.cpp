// SPDX-License-Identifier: Apache-2.0
// The rules of types: whether this build has them, and which may differ from the policy of run.precision. Example:
// run.precision = "fp32" may have moments in bf16, which halves their memory, but run.precision = "bf16" may not have
// its activations sent in fp32, which would double the bytes for no digit more.
#include "config/rules.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>

namespace p3d::config {

namespace {

/// The policy must be in this build.
void check_build(Check const& c) {
  auto const precision = c.config.run.precision;
  if (has_precision(precision)) return;
  c.error({"run.precision"}, "\"fp64\" or \"fp32\": this build of p3d has no others",
          fmt::format("\"{}\"", to_string(precision)),
          "choose one of these, or configure p3d with -DP3D_16BIT=ON and build it again");
}

/// Attention as one kernel needs a library, 16 bits and no dropout.
void check_attention(Check const& c) {
  if (!c.known({"linalg.attention"}) || c.config.linalg.attention != AttentionKernel::fused) return;
  auto const precision = c.config.run.precision;
  if (!has_fused_attention())
    c.error({"linalg.attention"}, "\"auto\" or \"gemms\": this build of p3d has no library for attention as one kernel",
            "\"fused\"",
            "choose one of these; on NVIDIA's GPUs install cuDNN 9 and the headers of its C++ frontend, and build p3d "
            "again");
  else if (c.known({"run.precision"}) && precision != Precision::bf16 && precision != Precision::fp16)
    c.error({"linalg.attention", "run.precision"}, "\"auto\" or \"gemms\": attention as one kernel takes 16 bits alone",
            "\"fused\"", "leave linalg.attention out, or choose run.precision = \"bf16\"");
  else if (c.known({"model.dropout"}) && c.config.model.dropout > 0)
    c.error({"linalg.attention", "model.dropout"},
            "\"auto\" or \"gemms\": attention as one kernel draws no dropout as p3d does", "\"fused\"",
            "leave linalg.attention out, or set model.dropout = 0");
}

/// Autocast is about GEMMs in fp32, which round their operands to one type.
void check_autocast(Check const& c) {
  if (!c.known({"precision.autocast"}) || c.config.precision.autocast == Autocast::none) return;
  auto const found = fmt::format("autocast \"{}\"", to_string(c.config.precision.autocast));
  if (c.config.run.precision != Precision::fp32)
    c.error({"precision.autocast", "run.precision"},
            "run.precision = \"fp32\", whose GEMMs precision.autocast is about",
            fmt::format("{}, precision \"{}\"", found, to_string(c.config.run.precision)),
            "leave precision.autocast out, or set run.precision = \"fp32\"");
  if (c.known({"linalg.tf32"}) && c.config.linalg.tf32)
    c.error({"precision.autocast", "linalg.tf32"}, "one type to which GEMMs round what they multiply",
            fmt::format("{} and tf32", found), "leave one of them out");
}

/// Keys of [linalg] need a library in this build, or the precision that they are about.
void check_linalg(Check const& c) {
  check_attention(c);
  if (c.known({"linalg.tf32", "run.precision"}) && c.config.linalg.tf32 && c.config.run.precision != Precision::fp32)
    c.error({"linalg.tf32", "run.precision"}, "run.precision = \"fp32\", whose GEMMs linalg.tf32 is about",
            fmt::format("\"{}\"", to_string(c.config.run.precision)), "leave linalg.tf32 out");
  if (!c.known({"linalg.host"}) || c.config.linalg.host != HostGemm::onednn || has_onednn()) return;
  c.error({"linalg.host"}, "\"auto\" or \"blas\": this build of p3d has no oneDNN", "\"onednn\"",
          "choose one of these, or install oneDNN (Debian: libdnnl-dev, Spack: onednn) and build p3d again");
}

/// A type of its own for one purpose must be the policy's, or bf16 in its place where that is fp32.
void check_type(Check const& c, std::string const& key, Precision type, Precision policy, char const* what,
                bool may_be_narrow = true) {
  if (!c.known({key}) || type == policy) return;
  if (type == Precision::bf16 && policy == Precision::fp32 && may_be_narrow) {
    if (!has_precision(type))
      c.error({key}, "\"fp32\": this build of p3d has no types of 16 bits", "\"bf16\"",
              fmt::format("leave {} out, or configure p3d with -DP3D_16BIT=ON and build it again", key));
    return;
  }
  c.error({key, "run.precision"},
          policy == Precision::fp32 && may_be_narrow
              ? fmt::format("{} in fp32 or bf16", what)
              : fmt::format("{} in {}, as run.precision = \"{}\" has them", what, to_string(policy),
                            to_string(c.config.run.precision)),
          fmt::format("\"{}\"", to_string(type)), fmt::format("leave {} out", key));
}

/// The types of moments, gradients and messages must suit the policy.
void check_types(Check const& c) {
  auto const& p = c.config.precision;
  auto const run = c.config.run.precision;
  auto const wide = run == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  check_type(c, "precision.moments", p.moments, wide, "moments");
  // Only the policy of bf16 has a variant with gradients in bf16.
  check_type(c, "precision.gradients", p.gradients == Precision::bf16 && run == Precision::bf16 ? wide : p.gradients,
             wide, "gradients", p.gradients != Precision::bf16);
  check_type(c, "precision.reduction", p.reduction, p.gradients == Precision::bf16 ? Precision::bf16 : wide,
             "gradients between replicas");
  check_type(c, "precision.pipeline", p.pipeline, run, "activations between stages");
}

/// Moments in bf16 need a beta2 that lets the second one fall: one that shrinks by less than half of its last bit does
/// not change.
void check_slow_moments(Check const& c) {
  if (!c.known({"precision.moments", "optimizer.beta2"})) return;
  constexpr double slowest = 0.996;  // 1 - 2^-8, rounded up
  if (c.config.precision.moments != Precision::bf16 || c.config.optimizer.beta2 <= slowest) return;
  c.error({"precision.moments", "optimizer.beta2"},
          fmt::format("optimizer.beta2 of at most {} with moments in bf16", slowest),
          fmt::format("beta2 = {}: a second moment in bf16 would never fall", c.config.optimizer.beta2),
          "lower optimizer.beta2, or leave precision.moments out");
}

/// Loss scales are for fp16, and the keys of a dynamic one for that alone.
void check_loss_scale(Check const& c) {
  if (!c.known({"precision.loss_scale"})) return;
  auto const& p = c.config.precision;
  bool const fp16 = computes_in_fp16(c.config);
  if (p.loss_scaling != LossScaling::none && !fp16) {
    c.error(
        {"precision.loss_scale", "run.precision"},
        "no loss scale but with run.precision = \"fp16\" or precision.autocast = \"fp16\"",
        fmt::format("precision \"{}\", which has the exponents of fp32{}: nothing underflows that a factor would save",
                    to_string(c.config.run.precision), c.config.run.precision == Precision::fp64 ? " and more" : ""),
        "leave precision.loss_scale out");
    return;
  }
  if (p.loss_scaling == LossScaling::dynamic) {
    if (p.loss_scale_initial < p.loss_scale_floor)
      c.error({"precision.loss_scale_initial", "precision.loss_scale_floor"}, "a first loss scale above its floor",
              fmt::format("initial {}, floor {}", p.loss_scale_initial, p.loss_scale_floor), "raise the first one");
    return;
  }
  // Values are compared with the defaults, not with what was written: the resolved input of a run names every key.
  PrecisionOptions const defaults;
  auto const refuse_unless = [&](bool as_default, char const* key) {
    if (as_default) return;
    c.error({key, "precision.loss_scale"}, "this key only with a dynamic loss scale",
            fmt::format("loss_scale {}",
                        p.loss_scaling == LossScaling::fixed ? fmt::format("{}", p.loss_scale) : "\"none\""),
            fp16 ? "leave it out, or set precision.loss_scale = \"dynamic\"" : "leave it out");
  };
  refuse_unless(p.loss_scale_initial == defaults.loss_scale_initial, "precision.loss_scale_initial");
  refuse_unless(p.loss_scale_growth == defaults.loss_scale_growth, "precision.loss_scale_growth");
  refuse_unless(p.loss_scale_backoff == defaults.loss_scale_backoff, "precision.loss_scale_backoff");
  refuse_unless(p.loss_scale_interval == defaults.loss_scale_interval, "precision.loss_scale_interval");
  refuse_unless(p.loss_scale_hysteresis == defaults.loss_scale_hysteresis, "precision.loss_scale_hysteresis");
  refuse_unless(p.loss_scale_floor == defaults.loss_scale_floor, "precision.loss_scale_floor");
}

/// An eps that becomes 0 in the optimizer's arithmetic makes 0 / 0 of every weight without a gradient, such as the rows
/// of tokens that the data lacks.
void check_eps(Check const& c) {
  constexpr auto least = static_cast<double>(std::numeric_limits<float>::min());
  double const eps = c.config.optimizer.eps;
  if (!c.known({"optimizer.eps", "run.precision"}) || c.config.run.precision == Precision::fp64 || eps >= least) return;
  c.error({"optimizer.eps", "run.precision"},
          fmt::format("optimizer.eps of at least {:.3g}, the smallest normal number of fp32", least),
          fmt::format("eps = {} with precision \"{}\": it would be 0", eps, to_string(c.config.run.precision)),
          "raise optimizer.eps (1e-8 is common), or set run.precision = \"fp64\"");
}

/// Stochastic rounding is for weights in bf16.
void check_rounding(Check const& c) {
  if (!c.known({"precision.stochastic_rounding"}) || !c.config.precision.stochastic_rounding) return;
  if (c.config.run.precision == Precision::bf16) return;
  bool const fp16 = c.config.run.precision == Precision::fp16;
  c.error({"precision.stochastic_rounding", "run.precision"}, "stochastic rounding only with run.precision = \"bf16\"",
          fmt::format("precision \"{}\": {}", to_string(c.config.run.precision),
                      fp16 ? "its weights have 8 times finer steps" : "its weights are not rounded after an update"),
          "leave precision.stochastic_rounding out, or set run.precision = \"bf16\"");
}

/// All-reduces of 16-bit numbers need p3d's own algorithms.
void check_sums(Check const& c) {
  if (!c.known({"comm.allreduce", "parallel.tp", "parallel.pp", "pipeline.vocab_parallel"}) ||
      !c.known(axis_keys(token_axes)))
    return;
  if (c.config.comm.allreduce != AllReduce::mpi) return;
  auto const refuse = [&](char const* key, char const* axis, Precision type) {
    c.error({"comm.allreduce", key, axis}, "an all-reduce of p3d's own for sums of 16-bit numbers over ranks",
            fmt::format("allreduce \"mpi\": MPI has no sum of {}", to_string(type)),
            "set comm.allreduce to \"auto\" or any other value");
  };
  if (is_16bit(c.config.run.precision) && c.config.parallel.tp > 1)
    refuse("run.precision", "parallel.tp", c.config.run.precision);
  else if (is_16bit(c.config.run.precision) && c.config.divides_vocabulary())
    refuse("run.precision", "pipeline.vocab_parallel", c.config.run.precision);
  if (!is_16bit(c.config.precision.reduction)) return;
  for (auto axis : token_axes.list()) {
    if (c.config.parallel[axis] == 1) continue;
    refuse("precision.reduction", row_of(axis).key, c.config.precision.reduction);
    return;
  }
}

}  // namespace

void check_precision(Check const& check) {
  if (!check.known({"run.precision"})) return;
  check_build(check);
  check_linalg(check);
  check_autocast(check);
  check_types(check);
  check_slow_moments(check);
  check_loss_scale(check);
  check_eps(check);
  check_rounding(check);
  check_sums(check);
}

}  // namespace p3d::config
