// SPDX-License-Identifier: Apache-2.0
// The store of offloaded activations by itself: what is offloaded comes back, into another slot too; what is reloaded
// and never read does not reach the microbatch that takes the slot next; a slot is free when its copy has ended, and
// not only at the next flush. In builds where the host does not reach the slots (preset debug) these are the paths of
// GPUs.

#include <p3d/base/error.hpp>
#include <p3d/device/event.hpp>
#include <p3d/device/guard.hpp>

#include <support/kokkos_main.hpp>
#include <support/temp_dir.hpp>

#include <engine/activation_store.hpp>

#include <vector>

namespace {

using namespace p3d;
using Bytes = std::vector<unsigned char>;

constexpr std::int64_t slot_bytes = 3 * device::SwapFile::alignment;

/// A stage with slots of bytes, and nothing else.
class SlotsOnly final : public engine::StagePort {
public:
  explicit SlotsOnly(int slots) {
    for (int k = 0; k < slots; ++k) slots_.emplace_back("p3d::test::slot", slot_bytes);
  }
  void fill(int slot, unsigned char value) {
    Kokkos::deep_copy(slots_[at(slot)], value);
    device::fence(device::ExecSpace(), "test");
  }
  Bytes content(int slot) const {
    device::fence(device::ExecSpace(), "test");
    auto const host = device::host_copy(slots_[at(slot)]);
    return Bytes(host.data(), host.data() + host.size());
  }

  model::StageRegion offloaded(int slot, bool) const override {
    return {reinterpret_cast<std::byte*>(slots_[at(slot)].data()), slot_bytes};
  }
  model::TokenRows rows(int) const override { return {}; }
  void resume(int slot, model::TokenRows, bool) override { resumed.push_back(slot); }
  std::vector<int> resumed;

  void shape(int, std::int64_t) override {}
  void forward(engine::WeightChoice, int, bool) override {}
  void backward(schedule::Op, engine::WeightChoice, int, double, Ready const&) override {}
  void move_weights(schedule::Op, int) override {}
  engine::SlotRows input(int) const override { return {}; }
  engine::SlotRows output(int) const override { return {}; }
  engine::SlotRows gradient(int) const override { return {}; }
  engine::SlotRows head_input(int) const override { return {}; }
  void take_input(int, engine::SlotRows) override {}
  void take_gradient(int, engine::SlotRows) override {}
  void take_head_gradient(int, engine::SlotRows) override {}
  bool hands_on() const override { return false; }
  bool has_gradient() const override { return true; }
  comm::Communicator::Message make_message(schedule::Action const&, schedule::Program const&) override {
    P3D_REQUIRE(false, "a store sends no messages");
  }
  void pass_empty(comm::Communicator&, schedule::Action const&, schedule::Program const&) override {}
  std::size_t first_own_param() const override { return 0; }
  std::size_t end_of_own_params() const override { return 0; }
  std::size_t num_params() const override { return 0; }

private:
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  std::vector<device::Owned1<unsigned char>> slots_;
};

/// Both kinds: a file, and host memory.
class ActivationStores : public testing::TestWithParam<bool> {
protected:
  ActivationStores()
      : stage(2), store({}, {.folder = folder.path().string(), .bytes = 2 * slot_bytes, .meanwhile = {}}, GetParam()) {
    store.add(5, stage, 2, 2 * slot_bytes);
  }
  ~ActivationStores() override { device::set_late_events(0); }
  static Bytes all(unsigned char value) { return Bytes(static_cast<std::size_t>(slot_bytes), value); }

  test::TempDir folder;
  SlotsOnly stage;
  engine::ActivationStore store;
};

TEST_P(ActivationStores, WhatIsOffloadedComesBack) {
  for (int m = 0; m < 2; ++m) {
    stage.fill(0, static_cast<unsigned char>(10 + m));
    store.offload(5, 0, m, false);
    store.wait_written(5, 0);
  }
  stage.fill(0, 99);
  store.reload(5, 1, 0, false);
  store.wait_read(5, 1);
  EXPECT_EQ(stage.content(1), all(10));
  store.reload(5, 0, 1, false);
  store.wait_read(5, 0);
  EXPECT_EQ(stage.content(0), all(11));
  EXPECT_EQ(stage.content(1), all(10));
  EXPECT_EQ(stage.resumed, (std::vector<int>{1, 0}));
  EXPECT_FALSE(store.reads(5, 0) || store.reads(5, 1));
}

TEST_P(ActivationStores, AReadThatIsForgottenReachesNobody) {
  stage.fill(0, 10);
  store.offload(5, 0, 0, true);
  store.wait_written(5, 0);
  store.reload(5, 0, 0, true);
  store.forget_read(5, 0);  // another microbatch takes the slot
  EXPECT_FALSE(store.reads(5, 0));
  stage.fill(0, 20);
  store.wait_read(5, 0);
  EXPECT_EQ(stage.content(0), all(20));
}

TEST_P(ActivationStores, ASlotIsFreeWhenItsCopyHasEnded) {
  bool const in_memory = GetParam();
  device::set_late_events(3);
  stage.fill(0, 10);
  store.offload(5, 0, 0, true);
  EXPECT_TRUE(!in_memory || store.writes(5, 0));
  EXPECT_TRUE(!in_memory || store.writes_gradient(5, 0));
  int asked = 0;
  while (store.writes(5, 0)) ++asked;  // without a flush
  EXPECT_TRUE(!in_memory || asked == 0) << "the event was reached when it was asked for the third time";
  EXPECT_FALSE(store.writes_gradient(5, 0));
  store.offload(5, 0, 1, false);
  EXPECT_FALSE(store.writes_gradient(5, 0)) << "what is written now has no gradient";
  store.wait_written(5, 0);
  EXPECT_FALSE(store.writes(5, 0));
}

INSTANTIATE_TEST_SUITE_P(Kinds, ActivationStores, testing::Bool(),
                         [](auto const& info) { return std::string(info.param ? "memory" : "file"); });

}  // namespace
