// SPDX-License-Identifier: Apache-2.0
#pragma once
// The all-to-all around attention, among the members of a place (context.hpp). Before and after it a rank has its own
// tokens with all heads; between, it has all tokens of the place with its own heads. Both sides are lists of boxes: one
// list says what goes to each member, the other where that member's numbers are put. The way back swaps the lists.
//
// Example: with 2 members, 4 heads and 10 tokens a rank sends heads 2 and 3 of its 5 tokens, and gets heads 0 and 1 of
// the other 5 tokens.

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/layout/context.hpp>

#include <vector>

namespace p3d::parallel {

using kernels::HeadRows;

/// The tags of messages around attention.
enum ContextTag { keys_tag, gradients_tag, heads_tag };

/// Numbers [begin, begin + count) of a scratch array.
template <class T>
device::View1<T> part(device::View1<T> all, std::int64_t begin, std::int64_t count) {
  P3D_REQUIRE(begin + count <= static_cast<std::int64_t>(all.extent(0)), "scratch of attention has room");
  return device::View1<T>(all.data() + begin, count);
}
/// A vector as a matrix of one row, as messages take it.
template <class T>
device::View2<T> as_row(device::View1<T> v) {
  return device::View2<T>(v.data(), 1, v.extent(0));
}
template <class T>
HeadRows<T> from_column(HeadRows<T> m, std::int64_t column) {
  return {m.data + column, m.stride};
}

/// Columns of a matrix that has all heads: those of member m are [first + m width, first + (m + 1) width). In a matrix
/// with the heads of one member such pieces follow each other.
struct HeadColumns {
  std::int64_t first, width;
};

/// The all-to-all of one call, for elements of type T.
template <class T>
struct HeadExchange {
  device::ExecSpace exec;
  comm::Communicator& members;
  layout::ContextDivision const& division;
  int place;
  std::int64_t samples;
  device::View1<T> sent, received;  ///< memory of messages

  /// Brings `local` [samples, the rank's tokens] of all heads to `there` [samples, the place's tokens] of the rank's
  /// heads, which may be the same memory.
  void to_place(std::vector<HeadColumns> const& columns, HeadRows<T const> local, HeadRows<T> there) const {
    exchange([&](int m) { return of_tokens(columns, local, m); }, [&](int m) { return of_heads(columns, there, m); });
  }
  /// Brings `there` back to `local`.
  void to_local(std::vector<HeadColumns> const& columns, HeadRows<T const> there, HeadRows<T> local) const {
    exchange([&](int m) { return of_heads(columns, there, m); }, [&](int m) { return of_tokens(columns, local, m); });
  }
  /// Brings the rows of each member, [samples, its tokens] of `width` numbers, to all members: `there` [samples, the
  /// place's tokens].
  void rows_to_place(std::int64_t width, HeadRows<T const> local, HeadRows<T> there) const {
    exchange([&](int) { return own_rows(width, local); }, [&](int m) { return of_heads({{0, width}}, there, m); });
  }
  /// The way back, of gradients: `local` becomes the sum over the members, in their order, of what they have for the
  /// rank's rows in `there`.
  void sum_to_local(std::int64_t width, HeadRows<T const> there, HeadRows<T> local) const {
    exchange(
        [&](int m) {
          return of_heads({{0, width}}, there, m);
        },
        [&](int) { return own_rows(width, local); }, true);
  }
  /// Brings `local` [samples, heads, the rank's tokens] to `there` [samples, the rank's heads, the place's tokens].
  void statistics_to_place(std::int64_t heads, T const* local, T* there) const {
    auto const some = heads / members.size(), tokens = share(members.rank()).size(), all = tokens_of_place();
    exchange([&](int m) { return boxes<T const>(local + m * some * tokens, heads * tokens, tokens, some, tokens); },
             [&](int m) { return boxes<T>(there + share(m).begin, some * all, all, some, share(m).size()); });
  }

private:
  /// A matrix within another one.
  template <class U>
  struct Box {
    HeadRows<U> at;
    std::int64_t rows, columns;
  };
  template <class U>
  using Boxes = std::vector<Box<U>>;

  layout::Range share(int m) const { return division.share_of_place(place * members.size() + m); }
  std::int64_t tokens_of_place() const { return division.place_tokens(place).size(); }
  /// One box a sample; from one to the next there are `step` elements.
  template <class U>
  Boxes<U> boxes(U* first, std::int64_t step, std::int64_t stride, std::int64_t rows, std::int64_t columns) const {
    Boxes<U> out;
    for (std::int64_t s = 0; s < samples; ++s) out.push_back({{first + s * step, stride}, rows, columns});
    return out;
  }
  /// Numbers of the rank's own tokens.
  template <class U>
  Boxes<U> own_rows(std::int64_t width, HeadRows<U> local) const {
    return {{local, samples * share(members.rank()).size(), width}};
  }
  /// Member m's heads of the rank's own tokens.
  template <class U>
  Boxes<U> of_tokens(std::vector<HeadColumns> const& columns, HeadRows<U> local, int m) const {
    Boxes<U> out;
    for (auto const& c : columns)
      out.push_back({from_column(local, c.first + m * c.width), samples * share(members.rank()).size(), c.width});
    return out;
  }
  /// The rank's own heads of member m's tokens.
  template <class U>
  Boxes<U> of_heads(std::vector<HeadColumns> const& columns, HeadRows<U> there, int m) const {
    Boxes<U> out;
    U* first = there.data + share(m).begin * there.stride;
    for (auto const& c : columns) {
      auto const more = boxes<U>(first, tokens_of_place() * there.stride, there.stride, share(m).size(), c.width);
      out.insert(out.end(), more.begin(), more.end());
      first += c.width;
    }
    return out;
  }
  template <class U>
  static std::int64_t size_of(Boxes<U> const& all) {
    std::int64_t sum = 0;
    for (auto const& box : all) sum += box.rows * box.columns;
    return sum;
  }

  /// Sends the boxes from(m) to each member m and puts what m sends into the boxes to(m), after the last read of any
  /// from(m). The rank's own boxes go the same way without a message. With `adds` the boxes to(m) are the same for all
  /// members, and become the sum.
  template <class From, class To>
  void exchange(From const& from, To const& to, bool adds = false) const {
    int const n = members.size(), me = members.rank();
    std::vector<comm::Request> requests;
    std::vector<device::View1<T>> arrived;
    std::int64_t next = 0;
    for (int m = 0; m < n; ++m) {
      auto const count = m == me ? 0 : size_of(to(m));
      arrived.push_back(part(received, next, count));
      next += count;
      if (m != me) requests.push_back(collectives::start_recv<T>(exec, members, as_row(arrived.back()), m, heads_tag));
    }
    next = 0;
    for (int m = 0; m < n; ++m) {
      auto const boxes = from(m);
      auto const packed = part(sent, next, size_of(boxes));
      T* at = packed.data();
      next += static_cast<std::int64_t>(packed.extent(0));
      for (auto const& box : boxes) {
        kernels::copy_rows<T, T>(exec, box.rows, box.columns, {box.at.data, box.at.stride}, {at, box.columns});
        at += box.rows * box.columns;
      }
      if (m == me)
        arrived[static_cast<std::size_t>(m)] = packed;
      else
        requests.push_back(
            collectives::start_send<T>(exec, members, device::View2<T const>(as_row(packed)), m, heads_tag));
    }
    comm::wait_all(requests);
    for (int m = 0; m < n; ++m) {
      T const* at = arrived[static_cast<std::size_t>(m)].data();
      for (auto const& box : to(m)) {
        if (adds && m > 0)
          kernels::add_rows<T>(exec, box.rows, box.columns, {at, box.columns}, box.at);
        else
          kernels::copy_rows<T, T>(exec, box.rows, box.columns, {at, box.columns}, box.at);
        at += box.rows * box.columns;
      }
    }
  }
};

}  // namespace p3d::parallel
