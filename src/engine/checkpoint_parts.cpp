// SPDX-License-Identifier: Apache-2.0
// Connects the numbers of a rank with rectangles of global arrays: weights and the optimizer's state by owned runs,
// then what comm.compress remembers, by whole parameters. Example: an owned run that begins in the middle of a row
// gives up to three rectangles.
#include "checkpoint_parts.hpp"

#include <p3d/device/guard.hpp>

#include <algorithm>
#include <string>

namespace p3d::engine {

namespace {

/// A view of `count` elements of a flat buffer from `begin` on.
template <class T>
auto elements(device::View1<T> flat, std::int64_t begin, std::int64_t count) {
  return Kokkos::subview(flat, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + count));
}
/// A view of `count` numbers in host memory.
template <class T, class V>
auto host_view(V* memory, std::int64_t count) {
  return Kokkos::View<T*, Kokkos::LayoutRight, device::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
      static_cast<T*>(memory), static_cast<std::size_t>(count));
}

/// Copies numbers of a flat buffer to `host`, in the file's type: numbers of 16 bits become floats.
template <class T>
void copy_out(device::View1<T> flat, std::int64_t begin, std::int64_t count, void* host) {
  if constexpr (sizeof(T) == 2) {
    std::vector<T> numbers(static_cast<std::size_t>(count));
    Kokkos::deep_copy(host_view<T>(numbers.data(), count), elements<T>(flat, begin, count));
    auto* const out = static_cast<float*>(host);
    for (std::size_t i = 0; i < numbers.size(); ++i) out[i] = numbers[i];
  } else {
    Kokkos::deep_copy(host_view<T>(host, count), elements<T>(flat, begin, count));
  }
}
/// Copies numbers of the file's type from `host` to a flat buffer.
template <class T>
void copy_in(device::View1<T> flat, std::int64_t begin, std::int64_t count, void const* host) {
  if constexpr (sizeof(T) == 2) {
    auto const* const in = static_cast<float const*>(host);
    std::vector<T> numbers(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = T(in[i]);
    Kokkos::deep_copy(elements<T>(flat, begin, count), host_view<T>(numbers.data(), count));
  } else {
    Kokkos::deep_copy(elements<T>(flat, begin, count), host_view<T const>(host, count));
  }
}

/// A rectangle of a parameter, without its numbers.
io::CheckpointPart make_part(layout::LocalParam const& item, layout::Rectangle const& r, char const* group) {
  io::CheckpointPart p;
  p.array = std::string(group) + "/" + item.spec->name;
  p.global_rows = item.spec->rows;
  p.global_cols = item.spec->cols;
  p.row_begin = item.row_begin + r.row;
  p.col_begin = item.col_begin + r.col;
  p.rows = r.rows;  // padding is not stored; it stays zero
  p.cols = r.cols;
  return p;
}

/// Says that the numbers of a part lie in `from`, from `offset` on. `changed` is called when something was copied in.
template <class T, class Changed>
void connect(io::CheckpointPart& p, device::View1<T> from, std::int64_t offset, Changed const& changed) {
  p.copy_out = [from, offset](std::int64_t first, std::int64_t count, void* out) {
    copy_out<T>(from, offset + first, count, out);
  };
  p.copy_in = [from, offset, changed](std::int64_t first, std::int64_t count, void const* in) {
    copy_in<T>(from, offset + first, count, in);
    changed();
  };
}
/// Says the same of numbers in an offloaded array.
template <class T, class Changed>
void connect(io::CheckpointPart& p, device::OffloadedArray<T>& from, std::int64_t offset, Changed const& changed) {
  auto* const array = &from;
  p.copy_out = [array, offset](std::int64_t first, std::int64_t count, void* out) {
    array->read(offset + first, count, static_cast<T*>(out));
  };
  p.copy_in = [array, offset, changed](std::int64_t first, std::int64_t count, void const* in) {
    array->write(offset + first, count, static_cast<T const*>(in));
    changed();
  };
}

/// Says that a part is read as one of several whose sum every worker gets an equal part of.
template <class T>
void add_parts(io::CheckpointPart& p, std::vector<device::View1<T>> const& to, std::int64_t offset, int workers) {
  p.copy_in = [to, offset, workers](std::int64_t first, std::int64_t count, void const* in) {
    std::vector<T> numbers(static_cast<std::size_t>(count));
    for (auto const& worker : to) {
      copy_out<T>(worker, offset + first, count, numbers.data());
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] += static_cast<T const*>(in)[i] / static_cast<T>(workers);
      copy_in<T>(worker, offset + first, count, numbers.data());
    }
  };
}

/// Adds the parts of the factors Q, of which ranks with other rows of a matrix have the same; zeros stand for those of
/// parameters without any.
template <class P>
void add_factors(std::vector<io::CheckpointPart>& out, RankContext& rank, StageUnit<P>& unit,
                 config::StateArray const& array) {
  auto const& compressor = *unit.compressor;
  using T = typename parallel::GradientCompressor<typename P::Gradient>::Number;
  auto const& items = unit.params.layout().items();
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto const& item = items[i];
    auto part = make_part(item, {0, 0, array.rows, item.cols, 0}, array.group().c_str());
    part.global_rows = array.rows;
    part.row_begin = 0;
    auto const& all = compressor.plan().low_rank;
    auto const found = std::ranges::find_if(all, [&](auto const& t) { return t.item == i; });
    if (found != all.end()) {
      connect(part, compressor.factors(), found->right, [] {});
    } else {
      part.copy_out = [](std::int64_t, std::int64_t count, void* to) { std::fill_n(static_cast<T*>(to), count, T(0)); };
      part.copy_in = [](std::int64_t, std::int64_t, void const*) {};
    }
    part.replicas = &rank.along(item.spec->replica_axes().plus(layout::cutting_axes(*item.spec, 0)));
    part.writes = !item.spec->tied || unit.stage.is_first();
    out.push_back(std::move(part));
  }
}

/// Adds the parts of what comm.compress remembers of a stage. A replica has what it applied, and what its workers
/// remember. `arrays` of another number of workers are for reading, after Trainer::forget_compression(): the sum over
/// workers stays.
template <class P>
void add_compression(std::vector<io::CheckpointPart>& out, RankContext& rank, StageUnit<P>& unit,
                     config::StateArrays arrays) {
  if (arrays.empty()) return;
  auto& compressor = *unit.compressor;
  using Numbers = device::View1<typename parallel::GradientCompressor<typename P::Gradient>::Number>;
  int const workers = compressor.plan().workers, each = compressor.plan().workers_of_replica();
  bool const others = arrays.back().worker + 1 != workers;
  std::vector<Numbers> own;
  for (int j = 0; j < each; ++j) own.push_back(compressor.of_worker(j));
  for (auto const& array : arrays) {
    if (array.rows > 0) {
      add_factors(out, rank, unit, array);
      continue;
    }
    int const j = array.worker - rank.here.dp * each;
    bool const shared = array.worker < 0 || others;  // by replicas
    if (!shared && (j < 0 || j >= each)) continue;
    for (auto const& item : unit.params.layout().items()) {
      auto const axes = item.spec->replica_axes();
      for (auto const& r : layout::rectangles(item, 0, item.size())) {
        auto part = make_part(item, r, array.group().c_str());
        auto const at = item.offset + r.first;
        if (array.worker < 0)
          connect(part, compressor.applied(), at, [] {});
        else if (others)
          add_parts(part, own, at, workers);
        else
          connect(part, own[static_cast<std::size_t>(j)], at, [] {});
        part.replicas = &rank.along(shared ? axes : axes.minus(layout::Axis::dp));
        part.writes = !item.spec->tied || unit.stage.is_first();
        out.push_back(std::move(part));
      }
    }
  }
}

}  // namespace

template <class P>
std::vector<io::CheckpointPart> checkpoint_parts(RankContext& rank, RankMemory<P>& memory, config::StateArrays arrays) {
  // Where gradients are late, a file with all versions of the weights has the newest ones as its parameters, which are
  // the last array of the state in memory, and the older ones as arrays of the state: the first of them, the oldest, is
  // what layers read, and each other one lies in memory where the list has the one before it. Where a file has one
  // version, it goes to where layers read, and the next step makes all of it.
  auto const compression = std::ranges::find_if(arrays, [](auto const& array) { return array.compression; });
  auto const compressed = arrays.subspan(static_cast<std::size_t>(compression - arrays.begin()));
  arrays = arrays.first(arrays.size() - compressed.size());
  bool const versions = !arrays.empty() && arrays.back().weights;
  auto const oldest = std::ranges::find_if(arrays, [](auto const& array) { return array.weights; });
  if (versions) memory.make_versions();
  memory.show_newest(!versions);
  device::fence(rank.exec, "p3d::engine::checkpoint_parts");
  std::vector<io::CheckpointPart> out;
  for (auto const& [number, owner] : memory.units()) {
    auto* const unit = owner.get();  // Clang before 16 captures no structured binding
    for (auto const& run : unit->params.shard().owned) {
      auto const visit = [&](layout::LocalParam const& item, std::int64_t begin, std::int64_t count) {
        auto& replicas = rank.along(rank.divides() ? item.spec->repeated_axes() : item.spec->replica_axes());
        for (auto const& r : layout::rectangles(item, begin, count)) {
          auto const at = item.offset + r.first - run.begin;
          auto const add = [&](std::string const& group, auto&& from, std::int64_t offset) {
            auto part = make_part(item, r, group.c_str());
            connect(part, from, offset, [&memory, versions] {
              memory.master_changed();
              versions ? memory.set_all_versions() : memory.set_one_version();
            });
            part.replicas = &replicas;
            part.writes = !run.copy && (!item.spec->tied || unit->stage.is_first());
            out.push_back(std::move(part));
          };
          auto& offloaded = unit->offloaded;
          auto const read = versions ? oldest->group() : std::string("parameters");
          if (offloaded && offloaded->parts().master) {
            add(read, offloaded->master, run.packed + at);
          } else {
            add(read, unit->params.master(run), at);
          }
          for (std::size_t k = 0; k < arrays.size(); ++k) {
            auto const name = !arrays[k].weights       ? arrays[k].group()
                              : k + 1 == arrays.size() ? std::string("parameters")
                                                       : arrays[k + 1].group();
            auto const add_state = [&](auto&& from) { add(name, from, run.packed + at); };
            if (offloaded && k < offloaded->parts().arrays) {
              add_state(offloaded->state[k]);
            } else {
              unit->state.arrays()[k].visit(add_state);
            }
          }
        }
      };
      layout::for_parameters(unit->params.layout(), run.begin, run.count, visit);
    }
    add_compression(out, rank, *unit, compressed);
  }
  return out;
}

#define P3D_INSTANTIATE(P) \
  template std::vector<io::CheckpointPart> checkpoint_parts<P>(RankContext&, RankMemory<P>&, config::StateArrays);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
