// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention of the newest token of each text over the keys and values of all its tokens, which were kept: O(length) for
// a token, where the whole window costs O(length^2).

#include <p3d/kernels/attention.hpp>

namespace p3d::kernels {

/// Where rows of new tokens belong. Text t has the cache rows [t kv_heads, (t + 1) kv_heads), one for each local
/// key/value head; in it the token at position p has head_dim elements from p head_dim on. Positions of a row are those
/// of its TokenRows.
struct CachedTexts {
  View1<int const> text;      ///< [rows]
  bool begin = false;         ///< the rows are the beginning of one text, from position 0: its cache was empty
  std::int64_t capacity = 0;  ///< positions that a cache has room for
};

// Of the shape: heads, kv_heads, head_dim, scale and window. qkv is [rows, (heads + 2 kv_heads) head_dim] = (queries |
// keys | values), head by head.

/// Puts the keys and values of qkv into the caches, [texts kv_heads, capacity head_dim] each.
template <class S>
void store_keys_values(ExecSpace const& exec, TokenRows const& rows, AttentionShape const& shape,
                       CachedTexts const& texts, View2<S const> qkv, View2<S> keys, View2<S> values);

/// out [rows, heads head_dim]: softmax(scale q k^T) v over the positions that the row's own, which is in the cache by
/// now, sees. Two passes over keys and values are made of 2 length head_dim elements of each head; scores live in a
/// team's scratch. Bits do not depend on the number of threads or on what other rows there are.
template <class S>
void cached_attention_forward(ExecSpace const& exec, TokenRows const& rows, AttentionShape const& shape,
                              CachedTexts const& texts, View2<S const> qkv, View2<S const> keys, View2<S const> values,
                              View2<S> out);

}  // namespace p3d::kernels
