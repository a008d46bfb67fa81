// SPDX-License-Identifier: Apache-2.0
// The kinds int8 and topk. Both write units of lines into buffers of bytes; int8 has a part of these for each replica,
// which adds it up, and topk sends all to all. Buffers are words of 8 bytes, in which all numbers of a message are
// aligned. Example: with int8, 2 replicas and 4 workers, a replica keeps [part 0: workers 0, 1][part 1: workers 0, 1],
// and each part is one message.
#include "compressors.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/compression.hpp>

#include <utility>
#include <vector>

namespace p3d::parallel {

namespace {

using Words = device::Owned1<std::int64_t>;
constexpr std::int64_t word_bytes = sizeof(std::int64_t);

Words make_words(char const* label, std::int64_t bytes) {
  return device::large_array<std::int64_t>(label, bytes / word_bytes);
}
/// The bytes of a buffer from one on.
std::byte* bytes_of(Words const& buffer, std::int64_t from) {
  return reinterpret_cast<std::byte*>(buffer.data()) + from;
}
device::View2<std::int64_t> words_of(Words const& buffer, std::int64_t from, std::int64_t bytes) {
  return device::View2<std::int64_t>(buffer.data() + from / word_bytes, 1, bytes / word_bytes);
}

template <class Work>
void for_pieces(layout::Compression const& plan, std::size_t part, Work const& work) {
  for (auto const& piece : plan.parts[part]) work(piece, plan.tensors[piece.tensor].lines);
}

/// Numbers of 8 bits: a reduce-scatter by messages, then an all-gather.
template <class T>
class Int8 final : public GradientCompressor<T> {
  using GradientCompressor<T>::plan_;

public:
  Int8(device::ExecSpace const& exec, layout::Compression plan, layout::StageParams const& params,
       device::View1<T> gradients, comm::Communicator& replicas, std::uint64_t seed)
      : GradientCompressor<T>(std::move(plan)),
        exec_(exec),
        gradients_(gradients),
        replicas_(&replicas),
        taken_(make_words("p3d::parallel::compressed_gradients", plan_.workers_of_replica() * plan_.bytes())),
        received_(make_words("p3d::parallel::compressed_parts", plan_.workers * plan_.longest_part())),
        sums_(make_words("p3d::parallel::compressed_sums", plan_.bytes())) {
    for (auto const& t : plan_.tensors)
      keys_.push_back(base::random_key(seed, "compress." + params.items()[t.item].spec->name));
  }

  std::int64_t bytes() const override { return bytes_in(taken_) + bytes_in(received_) + bytes_in(sums_); }

  void take(int index, std::int64_t step, double) override {
    step_ = step;
    auto const each = plan_.workers_of_replica();
    device::View1<T const> const from = gradients_;
    for (std::size_t p = 0; p < plan_.parts.size(); ++p) {
      auto* const out = bytes_of(taken_, plan_.bounds[p] * each + index * plan_.part_bytes(p));
      for_pieces(plan_, p, [&](auto const& piece, auto const& lines) {
        kernels::encode<T>(exec_, lines, keys_[piece.tensor], stream(replicas_->rank() * each + index), from,
                           {out + piece.at, piece.first, piece.last});
      });
    }
  }

  void start() override {
    auto const each = plan_.workers_of_replica();
    int const here = replicas_->rank();
    auto const part = each * plan_.part_bytes(static_cast<std::size_t>(here));
    collectives::Exchange<std::int64_t> exchange(exec_, *replicas_);
    for (int r = 0; r < plan_.replicas; ++r) {
      auto const at = static_cast<std::size_t>(r);
      auto const mine = words_of(taken_, plan_.bounds[at] * each, plan_.part_bytes(at) * each);
      auto const its = words_of(received_, r * part, part);
      if (r == here) {
        Kokkos::deep_copy(exec_, its, mine);
      } else {
        exchange.send(mine, r);
        exchange.recv(its, r);
      }
    }
    if (plan_.replicas > 1) request_ = exchange.start(0);
  }

  void add_up() override {
    if (request_.active()) request_.wait();
    auto const here = static_cast<std::size_t>(replicas_->rank());
    std::byte const* const in = bytes_of(received_, 0);
    auto* const out = bytes_of(sums_, plan_.bounds[here]);
    for_pieces(plan_, here, [&](auto const& piece, auto const& lines) {
      kernels::add_coded<T>(exec_, lines, keys_[piece.tensor], stream(plan_.workers), plan_.workers,
                            {in + piece.at, piece.first, piece.last, plan_.part_bytes(here)},
                            {out + piece.at, piece.first, piece.last});
    });
    std::vector<std::int64_t> bounds;
    for (auto bound : plan_.bounds) bounds.push_back(bound / word_bytes);
    request_ = collectives::start_all_gather<std::int64_t>(exec_, *replicas_, sums_, bounds);
  }

  void finish(double) override {
    if (request_.active()) request_.wait();
    for (std::size_t p = 0; p < plan_.parts.size(); ++p) {
      std::byte const* const in = bytes_of(sums_, plan_.bounds[p]);
      for_pieces(plan_, p, [&](auto const& piece, auto const& lines) {
        kernels::decode<T>(exec_, lines, {in + piece.at, piece.first, piece.last}, gradients_);
      });
    }
  }

private:
  /// The stream of random numbers of a worker in this step; of the sums where it is comm.workers.
  std::uint64_t stream(int worker) const {
    constexpr int worker_bits = 17;
    return static_cast<std::uint64_t>(step_) << worker_bits | static_cast<std::uint64_t>(worker);
  }

  device::ExecSpace exec_;
  device::View1<T> gradients_;
  comm::Communicator* replicas_;
  std::vector<base::RandomKey> keys_;  ///< one for each tensor
  Words taken_;                        ///< by the replica whose part it is, then by worker of this replica
  Words received_;                     ///< this replica's part of all workers
  Words sums_;
  comm::Request request_;
  std::int64_t step_ = 0;
};

/// The numbers that changed most (EF21): an all-gather of what all workers chose.
template <class T>
class TopK final : public GradientCompressor<T> {
  using GradientCompressor<T>::plan_;

public:
  using typename GradientCompressor<T>::Number;

  TopK(device::ExecSpace const& exec, layout::Compression plan, device::View1<T> gradients,
       comm::Communicator& replicas)
      : GradientCompressor<T>(std::move(plan)),
        exec_(exec),
        gradients_(gradients),
        replicas_(&replicas),
        chosen_(make_words("p3d::parallel::chosen_gradients", plan_.workers * plan_.bytes())),
        applied_(device::large_array<Number>("p3d::parallel::applied_gradient", plan_.state_elements)),
        shares_(device::large_array<Number>("p3d::parallel::worker_shares",
                                            plan_.workers_of_replica() * plan_.state_elements)) {}

  std::int64_t bytes() const override { return bytes_in(chosen_) + bytes_in(applied_) + bytes_in(shares_); }

  void take(int index, std::int64_t, double factor) override {
    auto const first = replicas_->rank() * plan_.workers_of_replica();
    auto* const out = bytes_of(chosen_, (first + index) * plan_.bytes());
    for_pieces(plan_, 0, [&](auto const& piece, auto const& lines) {
      kernels::encode_topk<T>(exec_, lines, static_cast<Number>(factor), device::View1<T const>(gradients_),
                              of_worker(index), {out + piece.at, piece.first, piece.last});
    });
  }

  void start() override {
    std::vector<std::int64_t> bounds;
    for (int r = 0; r <= plan_.replicas; ++r)
      bounds.push_back(r * plan_.workers_of_replica() * plan_.bytes() / word_bytes);
    request_ = collectives::start_all_gather<std::int64_t>(exec_, *replicas_, chosen_, bounds);
  }

  void add_up() override {}

  void finish(double factor) override {
    if (request_.active()) request_.wait();
    std::byte const* const in = bytes_of(chosen_, 0);
    for_pieces(plan_, 0, [&](auto const& piece, auto const& lines) {
      kernels::add_topk<T>(exec_, lines, static_cast<Number>(1.0 / factor), plan_.workers,
                           {in + piece.at, piece.first, piece.last, plan_.bytes()}, applied_, gradients_);
    });
  }

  device::View1<Number> of_worker(int index) const override {
    auto const n = plan_.state_elements;
    return Kokkos::subview(shares_, Kokkos::pair<std::int64_t, std::int64_t>(index * n, (index + 1) * n));
  }
  device::View1<Number> applied() const override { return applied_; }

private:
  device::ExecSpace exec_;
  device::View1<T> gradients_;
  comm::Communicator* replicas_;
  Words chosen_;  ///< by worker, of all replicas
  device::Owned1<Number> applied_, shares_;
  comm::Request request_;
};

}  // namespace

template <class T>
std::unique_ptr<GradientCompressor<T>> make_compressor(device::ExecSpace const& exec, layout::Compression plan,
                                                       layout::StageParams const& params, device::View1<T> gradients,
                                                       CompressionGroups const& groups, std::uint64_t seed) {
  auto& replicas = groups(layout::Axis::dp);
  P3D_REQUIRE(replicas.size() == plan.replicas, "gradients are compressed for the ranks along dp");
  switch (plan.kind) {
    case config::Compress::topk: return std::make_unique<TopK<T>>(exec, std::move(plan), gradients, replicas);
    case config::Compress::powersgd: return make_low_rank<T>(exec, std::move(plan), params, gradients, groups, seed);
    default: return std::make_unique<Int8<T>>(exec, std::move(plan), params, gradients, replicas, seed);
  }
}

#define P3D_INSTANTIATE(T)                                                                                          \
  template std::unique_ptr<GradientCompressor<T>> make_compressor<T>(device::ExecSpace const&, layout::Compression, \
                                                                     layout::StageParams const&, device::View1<T>,  \
                                                                     CompressionGroups const&, std::uint64_t);
P3D_GRADIENT_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
