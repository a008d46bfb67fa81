// SPDX-License-Identifier: Apache-2.0
// The trial of a vendor's attention, with the kernels in the form that GPUs run.

#include <p3d/device/precision.hpp>
#include <p3d/kernels/fused_attention.hpp>
#include <p3d/report/attention_trial.hpp>

#include <support/fused_loops.hpp>
#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <memory>

namespace {

using namespace p3d;
using device::Bf16;

config::Config small() {
  return p3d::test::config_of({"model.preset=llama-tiny", "model.heads=4", "model.kv_heads=2", "model.hidden=64",
                               "model.seq_len=24", "run.precision=bf16", "data.format=synthetic", "batch.global=1"},
                              1);
}

/// A library that is wrong by a factor.
class Wrong final : public kernels::FusedAttention {
public:
  std::string name() const override { return "wrong"; }
  std::string refusal() const override { return ""; }
  std::optional<std::int64_t> plan(kernels::FusedCall::Shape const&, bool) override { return 0; }
  bool forward(kernels::FusedCall const& call) override { return right_.forward(call); }
  bool backward(kernels::FusedCall const& call) override {
    auto scaled = call;
    scaled.scale *= 1.1;
    return right_.backward(scaled);
  }

private:
  test::FusedLoops<device::bfloat16> right_;
};

/// A library that does not see a part of a call.
class Forgetful final : public kernels::FusedAttention {
public:
  explicit Forgetful(void (*forget)(kernels::FusedCall&)) : forget_(forget) {}
  std::string name() const override { return "forgetful"; }
  std::string refusal() const override { return ""; }
  std::optional<std::int64_t> plan(kernels::FusedCall::Shape const&, bool) override { return 0; }
  bool forward(kernels::FusedCall const& call) override { return right_.forward(without(call)); }
  bool backward(kernels::FusedCall const& call) override { return right_.backward(without(call)); }

private:
  kernels::FusedCall without(kernels::FusedCall call) const {
    forget_(call);
    return call;
  }
  void (*forget_)(kernels::FusedCall&);
  test::FusedLoops<device::bfloat16> right_;
};

struct Using {
  explicit Using(std::shared_ptr<kernels::FusedAttention> library) { kernels::set_fused_attention(std::move(library)); }
  ~Using() { kernels::set_fused_attention(nullptr); }
};

TEST(TryAttention, FindsTheSameNumbers) {
  Using const library(std::make_shared<test::FusedLoops<device::bfloat16>>());
  auto const trial = report::try_attention<Bf16>(small());
  EXPECT_TRUE(trial.taken) << trial.refusal;
  EXPECT_GT(trial.apart, 0.0);  // two ways, not one twice
  EXPECT_LT(trial.apart, report::attention_tolerance / 2);
}

TEST(TryAttention, FindsWrongNumbers) {
  Using const library(std::make_shared<Wrong>());
  auto const trial = report::try_attention<Bf16>(small());
  EXPECT_TRUE(trial.taken);
  EXPECT_GT(trial.apart, report::attention_tolerance);
}

TEST(TryAttention, HasDocumentsAndCaps) {
  auto packed = small(), capped = small();
  packed.data.pack = true;
  capped.model.attention_softcap = 50.0;
  for (auto const& c : {packed, capped}) {
    Using const library(std::make_shared<test::FusedLoops<device::bfloat16>>());
    auto const trial = report::try_attention<Bf16>(c);
    EXPECT_TRUE(trial.taken) << trial.refusal;
    EXPECT_LT(trial.apart, report::attention_tolerance / 2);
  }
  {
    Using const library(std::make_shared<Forgetful>([](kernels::FusedCall& call) { call.documents = nullptr; }));
    EXPECT_GT(report::try_attention<Bf16>(packed).apart, report::attention_tolerance);
  }
  Using const library(std::make_shared<Forgetful>([](kernels::FusedCall& call) { call.softcap = 0; }));
  EXPECT_GT(report::try_attention<Bf16>(capped).apart, report::attention_tolerance);
}

TEST(TryAttention, SaysWhyALibraryRefuses) {
  Using const library(std::make_shared<test::FusedLoops<device::bfloat16>>());
  auto c = small();
  c.model.hidden = 4 * 72;
  c.model.head_size = 72;
  auto const trial = report::try_attention<Bf16>(c);
  EXPECT_FALSE(trial.taken);
  EXPECT_EQ(trial.refusal, "no more than 64");
}

TEST(TryAttention, IsOfSixteenBits) {
  auto const trial = report::try_attention<device::Fp32>(small());
  EXPECT_FALSE(trial.taken);
}

TEST(ChooseAttention, HasNoChoiceOnHosts) {
  auto world = comm::Communicator::world();
  EXPECT_EQ(report::choose_attention<Bf16>(small(), world), "");
}

}  // namespace
