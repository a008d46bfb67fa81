// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention for generation: the newest token of each text sees the keys and values of all its tokens, which were kept
// in caches. A token costs O(length), where attention over the whole window costs O(length^2). For these functions an
// AttentionShape says heads, kv_heads, head_dim, value_dim, scale and window. Rows of qkv are (queries | keys |
// values), head by head: [rows, (heads + kv_heads) head_dim + kv_heads values()].

#include <p3d/kernels/attention.hpp>

namespace p3d::kernels {

/// The places of new tokens in the caches. Text t has the cache rows [t kv_heads, (t + 1) kv_heads), one for each local
/// key/value head. In a cache row of keys, the token at position p has head_dim elements from p head_dim on, in one of
/// values values() elements from p values() on; the position of each row comes from its TokenRows.
struct CachedTexts {
  View1<int const> text;      ///< [rows]: the text that each row continues
  bool begin = false;         ///< the rows are the beginning of one text, from position 0: its cache was empty
  std::int64_t capacity = 0;  ///< positions that one cache row has memory for
  /// Elements from the values of one position to those of the next; 0: values(). Values may be a part of the keys.
  std::int64_t value_stride = 0;
};

/// Copies `from` [rows, kv_heads width] into one cache [texts kv_heads, capacity width].
template <class S>
void store_in_cache(ExecSpace const& exec, TokenRows const& rows, CachedTexts const& texts, std::int64_t kv_heads,
                    View2<S const> from, View2<S> cache);

/// Copies the keys and values of qkv into the caches. The cache of keys is [texts kv_heads, capacity
/// head_dim], that of values [texts kv_heads, capacity values()].
template <class S>
void store_keys_values(ExecSpace const& exec, TokenRows const& rows, AttentionShape const& shape,
                       CachedTexts const& texts, View2<S const> qkv, View2<S> keys, View2<S> values);

/// out [rows, heads values()] = softmax(scale q k^T) v over the positions that the row's position sees, and over the
/// sink of the head where `sinks` [heads] is not empty (attention_sinks.hpp). The row's own key and value must be in
/// the cache already (store_keys_values). Each head reads its keys and its values once; scores live in a team's
/// scratch. Bits depend neither on the number of threads nor on the other rows.
template <class S>
void cached_attention_forward(ExecSpace const& exec, TokenRows const& rows, AttentionShape const& shape,
                              CachedTexts const& texts, View2<S const> qkv, View2<S const> keys, View2<S const> values,
                              Given<View1<S const>> sinks, View2<S> out);

}  // namespace p3d::kernels
