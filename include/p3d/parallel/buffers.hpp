// SPDX-License-Identifier: Apache-2.0
#pragma once
// Views of the rows of layout/buffers.hpp: structs whose members are rows of the table, and how an arena gives them
// their memory. P3D_BUFFER_VIEWS(P3D_LOSS_BUFFERS) in a struct template over the storage type S declares a view of each
// row, by its name, each(views, visit), which calls visit(buffer, view) for them in the order of the table, and
// copy(set, from), which copies the views that are in a set.

#include <p3d/device/arena.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/buffers.hpp>

#include <cstddef>
#include <cstdint>

namespace p3d::parallel {

/// The bytes of the elements that depend on the storage type S.
template <class S>
inline constexpr layout::ElementBytes element_bytes{sizeof(S), sizeof(device::accumulate_t<S>)};

/// A value of the type of the elements of a row, where activations have type S.
template <class S, layout::Element element>
auto value_of() {
  using layout::Element;
  if constexpr (element == Element::storage)
    return S{};
  else if constexpr (element == Element::sums)
    return device::accumulate_t<S>{};
  else if constexpr (element == Element::bfloat16)
    return device::bfloat16{};
  else if constexpr (element == Element::int32)
    return int{};
  else if constexpr (element == Element::int64)
    return std::int64_t{};
  else
    return std::byte{};
}
template <class S, layout::Element element>
using ElementType = decltype(value_of<S, element>());

// P3D_VIEW_<form> is the view of a row's form; the three macros below it are what a row of the table expands to.
#define P3D_VIEW_vector ::p3d::device::View1
#define P3D_VIEW_matrix ::p3d::device::View2
#define P3D_DECLARE_VIEW(group, name, form, element, ...) \
  P3D_VIEW_##form<::p3d::parallel::ElementType<S, ::p3d::layout::Element::element>> name;
#define P3D_VISIT_VIEW(group, name, ...) visit(::p3d::layout::Buffer::group##_##name, views.name);
#define P3D_COPY_VIEW(group, name, ...) \
  if (::p3d::layout::has(set, ::p3d::layout::Buffer::group##_##name)) name = from.name;
#define P3D_BUFFER_VIEWS(ROWS)                                        \
  ROWS(P3D_DECLARE_VIEW)                                              \
  template <class Views, class Visit>                                 \
  static void each(Views& views, Visit const& visit) {                \
    ROWS(P3D_VISIT_VIEW)                                              \
  }                                                                   \
  template <class Views>                                              \
  void copy(::p3d::layout::BufferSet const& set, Views const& from) { \
    ROWS(P3D_COPY_VIEW)                                               \
  }

/// Makes a view of a buffer's shape at its memory.
template <class T>
void set_view(device::View1<T>& view, void* memory, layout::BufferShape const& shape) {
  view = device::View1<T>(static_cast<T*>(memory), shape.columns > 0 ? shape.rows : 0);
}
template <class T>
void set_view(device::View2<T>& view, void* memory, layout::BufferShape const& shape) {
  view = device::View2<T>(static_cast<T*>(memory), shape.rows, shape.columns);
}

/// One buffer in the memory that an arena gave it.
struct TakenMemory {
  layout::Buffer buffer;
  void* data;
  layout::BufferShape shape;
};
/// Takes the memory of one buffer from an arena, or from a counter with the same take_bytes().
template <class S, class Source>
TakenMemory take(Source& source, layout::Buffer buffer, layout::BlockSizes const& s) {
  auto const e = element_bytes<S>;
  return {buffer, source.take_bytes(static_cast<std::size_t>(layout::bytes_of(buffer, s, e))),
          layout::shape_of(buffer, s, e)};
}
/// Makes a struct's view of a buffer point to its memory; a struct without that buffer is left alone.
template <class Views>
void bind(Views& views, TakenMemory const& memory) {
  Views::each(views, [&](layout::Buffer buffer, auto& view) {
    if (buffer == memory.buffer) set_view(view, memory.data, memory.shape);
  });
}
/// Takes the memory of all buffers of which the struct has views, in the order of the table.
template <class S, class Source, class Views>
void take_all(Source& source, layout::BlockSizes const& s, Views& views) {
  Views::each(views, [&](layout::Buffer buffer, auto& view) {
    auto const memory = take<S>(source, buffer, s);
    set_view(view, memory.data, memory.shape);
  });
}

/// In builds that guard memory: makes all buffers of the struct unusable (device/guard.hpp), so that a result from what
/// an action before has left in them shows.
template <class Views>
void make_unusable(device::ExecSpace const& exec, Views& views) {
  Views::each(views, [&](layout::Buffer, auto& view) { device::make_unusable(exec, view); });
}

}  // namespace p3d::parallel
