// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sum of one stage's gradients over replicas, compressed (layout/compression.hpp). A replica computes the gradients
// of its workers one after the other; each is taken, compressed and kept until all are there, then they travel.
//
// Example, 2 replicas and 4 workers: each replica takes worker 0 and clears its gradients, takes worker 1, starts. With
// int8 it gets its half of the units of all 4 workers, adds them up, and gives the rounded sums to the other one.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/compression.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace p3d::parallel {

/// One kind of compression, for one stage. start(), add_up() and finish() are collective along dp; with powersgd
/// start() is along tp, too, and add_up() along the axes that divide matrices.
template <class T>
class GradientCompressor {
public:
  /// The type of sums and of what is remembered.
  using Number = device::accumulate_t<T>;
  virtual ~GradientCompressor() = default;

  /// Compresses the gradients, multiplied by `factor`, as those of worker `index` of this replica, from 0 on. Random
  /// numbers go by `step`.
  virtual void take(int index, std::int64_t step, double factor) = 0;
  /// Starts to send what was taken, when all workers of this replica were.
  virtual void start() = 0;
  /// Waits for what was sent, and starts to send what follows from it.
  virtual void add_up() = 0;
  /// Waits for the sums and writes them, divided by `factor`, over the gradients.
  virtual void finish(double factor) = 0;

  layout::Compression const& plan() const { return plan_; }
  /// Bytes that are allocated.
  virtual std::int64_t bytes() const = 0;
  /// Makes all that is remembered zero.
  void forget(device::ExecSpace const& exec) {
    for (int j = 0; j < plan_.workers_of_replica(); ++j) clear(exec, of_worker(j));
    clear(exec, applied());
    clear(exec, factors());
  }
  /// The memory of worker `index` of this replica, as a flat buffer; empty where nothing is remembered.
  virtual device::View1<Number> of_worker(int) const { return {}; }
  /// The gradient that was applied last, as a flat buffer; empty where it is not remembered.
  virtual device::View1<Number> applied() const { return {}; }
  /// The factors Q of all matrices (layout::LowRankTensor); empty where there are none.
  virtual device::View1<Number> factors() const { return {}; }

protected:
  explicit GradientCompressor(layout::Compression plan) : plan_(std::move(plan)) {}
  layout::Compression plan_;

private:
  static void clear(device::ExecSpace const& exec, device::View1<Number> numbers) {
    if (numbers.extent(0) > 0) Kokkos::deep_copy(exec, numbers, Number(0));
  }
};

/// The ranks along a set of axes; they outlive what is made with them.
using CompressionGroups = std::function<comm::Communicator&(layout::AxisSet)>;

/// Makes the kind that the plan says. `gradients`: the flat buffer of the stage. Takes plan.buffer_bytes() and
/// plan.state_bytes() of memory; what is remembered is zero at first, and start() draws factors that are zero.
template <class T>
std::unique_ptr<GradientCompressor<T>> make_compressor(device::ExecSpace const& exec, layout::Compression plan,
                                                       layout::StageParams const& params, device::View1<T> gradients,
                                                       CompressionGroups const& groups, std::uint64_t seed);

}  // namespace p3d::parallel
