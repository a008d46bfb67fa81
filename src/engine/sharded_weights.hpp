// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hands out weights that are not whole all the time: replicas own them in parts (memory.shard), or they wait elsewhere
// (memory.offload_parameters), or both. GATHER, or RELOAD where the rank owns all of them, makes them whole; RELEASE,
// or OFFLOAD, gives that up.

#include <p3d/base/error.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/weights.hpp>

#include <array>
#include <utility>
#include <vector>

#include "offloaded_state.hpp"

namespace p3d::engine {

template <class P>
class ShardedWeights final : public model::WeightProvider<P> {
public:
  using S = typename P::Storage;
  /// Two buffers that stages fetch their own parts into, in turn: one arrives while those of the other are gathered.
  /// Stages that own all of their weights, where host and kernels share memory, fetch to where layers read.
  struct Rooms {
    std::array<StagedPiece<S>, 2> rooms;
    std::array<ShardedWeights*, 2> users{};
    std::size_t next = 0;

    explicit Rooms(std::int64_t longest) {
      for (auto& room : rooms) room = StagedPiece<S>(longest);
    }
    std::int64_t bytes() const { return rooms[0].bytes() + rooms[1].bytes(); }
    static bool needed(bool divided) { return divided || !device::host_reaches_views; }
  };

  /// `resident`: whole weights have memory of their own, and are good until the next update. Else they are given up by
  /// RELEASE. `lender`: of the stage whose weights are among `whole`; null: none.
  ShardedWeights(device::ExecSpace const& exec, model::Parameters<P>& params, model::StageWeights<P> whole,
                 bool resident, std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
                 parallel::ReplicaGroups const& groups, ShardedWeights* lender)
      : exec_(exec),
        params_(&params),
        whole_(std::move(whole)),
        resident_(resident),
        lender_(lender),
        gatherer_(exec, params.shard(), params.values(), communicator, groups) {}

  /// The values wait in `state`. `rooms`: null where they need none.
  void fetch_from(OffloadedState<P>& state, Rooms* rooms) {
    state_ = &state;
    rooms_ = rooms;
  }

  model::StageWeights<P> const& weights(int) override {
    if (lender_) lender_->finish();
    finish();
    return whole_;
  }
  void gather(int) override {
    if (!params_->shard().divided) refuse("GATHER", "RELOAD and OFFLOAD: every rank owns all of its weights");
    bring();
  }
  void release(int) override { give_up(); }
  void reload(int) override {
    if (params_->shard().divided) refuse("RELOAD", "GATHER and RELEASE: ranks own parts of the weights");
    bring();
  }
  void offload(int) override { give_up(); }

  /// The weights that were made whole are not needed.
  void give_up() {
    finish();
    gathered_ = gathered_ && resident_;
  }
  /// Owned values changed: what was gathered is old.
  void updated() { gathered_ = false; }

private:
  void bring() {
    if (std::exchange(gathered_, true)) return;
    if (state_) return start_fetch();
    params_->place_values(exec_);
    gatherer_.start();
  }
  void finish() {
    finish_fetch();
    gatherer_.finish();
  }

  void start_fetch() {
    auto& values = state_->values();
    S* to = params_->values().data();
    if (rooms_) {
      room_ = std::exchange(rooms_->next, 1 - rooms_->next);
      if (auto* const user = std::exchange(rooms_->users[room_], this)) user->finish_fetch();
      to = rooms_->rooms[room_].host();
    }
    for (std::int64_t p = 0; p < values.num_pieces(); ++p)
      fetches_.push_back(values.start_load(p, to + p * device::OffloadedArray<S>::piece));
    fetching_ = true;
  }
  void finish_fetch() {
    if (!std::exchange(fetching_, false)) return;
    for (auto& request : fetches_)
      if (request.active()) request.wait();
    fetches_.clear();
    if (rooms_) {
      auto const n = state_->values().size();
      auto const& room = rooms_->rooms[room_];
      room.to_kernels(exec_, n);
      params_->place_values(exec_, room.view(0, n));
      device::fence(exec_, "p3d::engine::fetched_weights");
      if (rooms_->users[room_] == this) rooms_->users[room_] = nullptr;
    }
    if (params_->shard().divided) gatherer_.start();
  }

  [[noreturn]] static void refuse(char const* what, char const* expected) {
    throw base::Error({.expected = expected,
                       .found = what,
                       .where = "the weights of a stage",
                       .fix = "write the schedule so, or leave memory.shard and memory.offload_parameters out"});
  }

  device::ExecSpace exec_;
  model::Parameters<P>* params_;
  model::StageWeights<P> whole_;
  bool resident_;
  ShardedWeights* lender_;
  bool gathered_ = false;
  parallel::WeightGatherer<S> gatherer_;
  OffloadedState<P>* state_ = nullptr;  ///< null: the values are in memory
  Rooms* rooms_ = nullptr;
  std::size_t room_ = 0;  ///< while it fetches
  bool fetching_ = false;
  std::vector<device::SwapFile::Request> fetches_;
};

}  // namespace p3d::engine
