// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys and values of the other places of a context-parallel group (context.hpp), block by block, and the way of
// their gradients back. A block is what one place has. In step t comes that of the place t before this one, whichever
// exchange brings it, and gradients of a block are added in the order of the ring: so all exchanges give the same bits.
//
// Example, backward:  keys.start(own);
//                     while (auto const block = keys.next()) { ... write keys.gradient(); keys.send_gradient(); }
//                     ... add keys.sum() to the gradient of the own keys ...

#include "head_exchange.hpp"

#include <p3d/kernels/elementwise.hpp>

#include <optional>

namespace p3d::parallel {

/// The memory of an exchange of blocks, which have `width` columns, and its group. The scratch is that of
/// layout/buffers.hpp.
template <class S>
struct KeyMemory {
  device::ExecSpace exec;
  comm::Communicator& ring;
  layout::ContextDivision const& division;
  std::int64_t samples, width;
  device::View1<S> blocks;
  device::View1<kernels::Acc<S>> gradients;
};

/// An exchange of blocks in one call of attention.
template <class S>
class KeySource {
public:
  using A = kernels::Acc<S>;
  /// The keys and values of a place; a row has the keys of all heads, then their values.
  struct Block {
    int place;
    HeadRows<S const> rows;
  };
  explicit KeySource(KeyMemory<S> const& memory)
      : memory_(memory), size_(memory.ring.size()), me_(memory.ring.rank()) {}
  KeySource(KeySource const&) = delete;
  KeySource& operator=(KeySource const&) = delete;
  virtual ~KeySource() = default;

  /// Starts the exchange, of this place's own rows.
  virtual void start(HeadRows<S const> own) = 0;
  /// The next block, valid until the next call; after the last one nothing.
  std::optional<Block> next() {
    comm::wait_all(keys_);
    keys_.clear();
    if (++step_ == size_) return {};
    return Block{at(step_), {take_block().data(), memory_.width}};
  }
  /// Memory for the gradient of the block that came last.
  virtual View1<A> gradient() = 0;
  /// Sends that gradient, which is there, on its way to the place of the keys.
  virtual void send_gradient() = 0;
  /// After all blocks, the sum of the gradients that other places have computed for this place's keys.
  virtual View1<A> sum() = 0;

protected:
  /// The place whose block this place works on in step t.
  int at(int t) const { return (me_ - t + size_) % size_; }
  /// The block of this step, which has arrived.
  virtual View1<S> take_block() = 0;

  View1<S> block(int slot, int place) const { return in_slot(memory_.blocks, slot, place); }
  View1<A> gradient_at(int slot, int place) const { return in_slot(memory_.gradients, slot, place); }
  View1<S> pack(HeadRows<S const> own, int slot) const {
    auto const to = block(slot, me_);
    kernels::copy_rows<S, S>(memory_.exec, static_cast<std::int64_t>(to.extent(0)) / memory_.width, memory_.width, own,
                             {to.data(), memory_.width});
    return to;
  }
  void add(View1<A> to, View1<A> from) const { kernels::add<A>(memory_.exec, View1<A const>(from), to); }
  template <class T>
  comm::Request receive(View1<T> v, int peer, ContextTag tag) const {
    return collectives::start_recv<T>(memory_.exec, memory_.ring, as_row(v), peer, tag);
  }
  template <class T>
  comm::Request send(View1<T> v, int peer, ContextTag tag) const {
    return collectives::start_send<T>(memory_.exec, memory_.ring, View2<T const>(as_row(v)), peer, tag);
  }

  KeyMemory<S> memory_;
  int size_, me_, step_ = 0;
  std::vector<comm::Request> keys_;  ///< messages of keys under way

private:
  template <class T>
  View1<T> in_slot(View1<T> all, int slot, int place) const {
    auto const& m = memory_;
    return part(all, slot * m.samples * m.division.most_place_tokens() * m.width,
                m.samples * m.division.place_tokens(place).size() * m.width);
  }
};

/// A ring: blocks go on to the next place while attention works on them, in two slots in turn. Their gradients go the
/// same way: each rank adds its part and sends the sum on, until it arrives at the place that owns the keys.
template <class S>
class RingKeys final : public KeySource<S> {
public:
  using KeySource<S>::KeySource;
  using typename KeySource<S>::A;

  void start(HeadRows<S const> own) override {
    this->pack(own, 0);
    pass_on();
  }
  View1<A> gradient() override {
    if (this->step_ > 1) sum_comes_ = this->receive(sum_of(this->at(this->step_)), before(), gradients_tag);
    return own_part();
  }
  void send_gradient() override {
    if (this->step_ > 1) {
      sum_comes_.wait();
      this->add(own_part(), sum_of(this->at(this->step_)));
    }
    sum_goes_.wait();
    sum_goes_ = this->send(own_part(), after(), gradients_tag);
  }
  View1<A> sum() override {
    this->receive(sum_of(this->me_), before(), gradients_tag).wait();
    sum_goes_.wait();
    return sum_of(this->me_);
  }

private:
  int before() const { return this->at(1); }
  int after() const { return this->at(this->size_ - 1); }
  View1<A> own_part() const { return this->gradient_at(this->step_ % 2, this->at(this->step_)); }
  /// The sum over the ranks before, on its way to the place that owns the keys.
  View1<A> sum_of(int place) const { return this->gradient_at(2, place); }
  View1<S> in_step(int t) const { return this->block(t % 2, this->at(t)); }
  void pass_on() {
    int const t = this->step_;
    if (t + 1 == this->size_) return;
    this->keys_.push_back(this->receive(in_step(t + 1), before(), keys_tag));
    this->keys_.push_back(this->send(in_step(t), after(), keys_tag));
  }
  View1<S> take_block() override {
    pass_on();
    return in_step(this->step_);
  }

  comm::Request sum_comes_, sum_goes_;
};

/// An all-gather: all blocks, and all parts of gradients, are sent directly.
template <class S>
class GatheredKeys final : public KeySource<S> {
public:
  using KeySource<S>::KeySource;
  using typename KeySource<S>::A;

  void start(HeadRows<S const> own) override {
    auto const others = [&](auto const& call) {
      for (int p = 0; p < this->size_; ++p)
        if (p != this->me_) this->keys_.push_back(call(p));
    };
    others([&](int p) { return this->receive(this->block(p, p), p, keys_tag); });
    auto const mine = this->pack(own, this->me_);
    others([&](int p) { return this->send(mine, p, keys_tag); });
  }
  View1<A> gradient() override {
    for (int t = 1; t < this->size_ && this->step_ == 1; ++t)  // each comes from the rank that computes it in step t
      parts_.push_back(this->receive(part_of(t), (this->me_ + t) % this->size_, gradients_tag));
    return this->gradient_at(this->size_ - 1 + this->step_ - 1, this->at(this->step_));
  }
  void send_gradient() override {
    int const place = this->at(this->step_);
    auto const own = this->gradient_at(this->size_ - 1 + this->step_ - 1, place);
    parts_.push_back(this->send(own, place, gradients_tag));
  }
  View1<A> sum() override {
    comm::wait_all(parts_);
    for (int t = 2; t < this->size_; ++t) this->add(part_of(t), part_of(t - 1));
    return part_of(this->size_ - 1);
  }

private:
  View1<A> part_of(int t) const { return this->gradient_at(t - 1, this->me_); }
  View1<S> take_block() override { return this->block(this->at(this->step_), this->at(this->step_)); }

  std::vector<comm::Request> parts_;
};

}  // namespace p3d::parallel
