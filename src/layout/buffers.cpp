// SPDX-License-Identifier: Apache-2.0
// Shapes and bytes of the rows of the table. The table writes a shape as a call, for example rows(s, s.hidden): the
// functions with these names stand here, and shape_of is a switch made of all rows.
#include <p3d/layout/axes.hpp>
#include <p3d/layout/buffers.hpp>

#include <algorithm>

namespace p3d::layout {

namespace {

// {} is the shape of a buffer that is not needed.

BufferShape fixed(std::int64_t rows, std::int64_t columns) { return {rows, columns, rows * columns}; }
BufferShape rows(BlockSizes const& s, std::int64_t columns) { return {s.rows, columns, s.most_rows * columns}; }
BufferShape tokens(BlockSizes const& s, std::int64_t columns) { return {s.tokens, columns, s.most_tokens * columns}; }
BufferShape exchanged_qkv(BlockSizes const& s) { return {s.tokens, s.qkv(), s.qkv_elements}; }
BufferShape input_share(BlockSizes const& s) {
  auto const largest = [&](std::int64_t tokens) { return even_share(tokens * s.hidden, s.tp, s.tp - 1).size(); };
  return {largest(s.tokens), 1, largest(s.most_tokens)};
}
BufferShape pairs(BlockSizes const& s) { return {2, s.tokens, 2 * s.most_tokens}; }
BufferShape loss_parts(BlockSizes const& s) {
  std::int64_t const each = 3 * std::int64_t{s.vocab_ranks};
  return {each * s.tokens, 1, each * s.most_tokens};
}

std::int64_t if_experts(BlockSizes const& s, std::int64_t n) { return s.moe.on() ? n : 0; }
std::int64_t own_rows(BlockSizes const& s) { return s.most_rows * s.moe.top_k; }
BufferShape choices(BlockSizes const& s) {
  auto const all = s.moe.seen_tokens() * s.moe.top_k;
  return {s.moe.gathers ? all : s.rows * s.moe.top_k, 1, all};
}
BufferShape places(BlockSizes const& s) {
  return s.moe.gathers ? fixed(s.moe.seen_tokens(), s.moe.top_k) : rows(s, s.moe.top_k);
}
BufferShape copies(BlockSizes const& s) {
  bool const several = s.moe.copies > 1 && !s.moe.gathers;
  return rows(s, several ? std::int64_t{s.moe.top_k} * s.moe.copies : 0);
}
BufferShape sort_space(BlockSizes const& s) {
  return s.moe.on() ? fixed(base::sort_workspace(s.moe.seen_tokens(), s.moe.experts, s.on_device), 1) : BufferShape{};
}
/// One row for every token that a rank sees, where all ranks get all tokens.
BufferShape seen(BlockSizes const& s, std::int64_t columns) {
  return s.moe.gathers ? fixed(s.moe.seen_tokens(), columns) : BufferShape{};
}
BufferShape each_seen_choice(BlockSizes const& s) {
  return s.moe.gathers ? fixed(s.moe.seen_tokens() * s.moe.top_k, 1) : BufferShape{};
}
/// Rows that travel to their experts, where they do.
BufferShape sent(BlockSizes const& s, std::int64_t rows, std::int64_t columns) {
  return s.moe.sends_rows() ? fixed(rows, columns) : BufferShape{};
}
/// Either: `of_token` rows of each token that a rank sees, or `rows`.
BufferShape exchanged(BlockSizes const& s, std::int64_t rows, std::int64_t columns, std::int64_t of_token) {
  return s.moe.gathers ? fixed(s.moe.seen_tokens() * of_token, columns) : sent(s, rows, columns);
}

BufferShape attention_scores(BlockSizes const& s, ElementBytes e) {
  if (!s.on_device) return {};
  auto const& a = s.attention;
  base::AttentionScores const scores{
      .storage = e.storage, .sums = e.sums, .head_dim = a.head_dim, .value_dim = a.value_dim};
  return fixed(scores.scratch_bytes(a.place_heads, a.place_kv_heads, a.place_tokens, a.place_tokens), 1);
}
BufferShape ring(BlockSizes const& s, std::int64_t elements) {
  return s.attention.ring > 1 ? fixed(elements, 1) : BufferShape{};
}
BufferShape key_blocks(BlockSizes const& s) {
  return ring(s, (s.attention.gather ? s.attention.ring : 2) * s.attention.travelling_elements());
}
BufferShape key_gradients(BlockSizes const& s) {
  return ring(s, (s.attention.gather ? 2 * (s.attention.ring - 1) : 3) * s.attention.travelling_elements());
}
/// The latents of a place, where they travel.
BufferShape latents(BlockSizes const& s) { return fixed(s.attention.latent_elements(), 1); }
/// Keys and values of another place that are made of its latents.
BufferShape expanded(BlockSizes const& s) { return ring(s, s.attention.latent > 0 ? s.attention.block_elements() : 0); }
BufferShape all_to_all(BlockSizes const& s, std::int64_t elements) {
  return s.attention.all_to_all > 1 ? fixed(elements, 1) : BufferShape{};
}

/// The buffers whose class `is` is true of.
template <class Is>
BufferSet those(Is const& is) {
  BufferSet out;
  for (std::size_t b = 0; b < num_buffers; ++b) out[b] = is(buffer_table[b].of_class);
  return out;
}

}  // namespace

std::int64_t ElementBytes::of(Element element) const {
  switch (element) {
    case Element::storage: return storage;
    case Element::sums: return sums;
    case Element::bfloat16: return 2;
    case Element::int32: return 4;
    case Element::int64: return 8;
    case Element::byte: return 1;
  }
  return 0;
}

BufferShape shape_of(Buffer buffer, BlockSizes const& s, [[maybe_unused]] ElementBytes e) {
  switch (buffer) {
#define P3D_SHAPE(group, name, form, element, shape, ...) \
  case Buffer::group##_##name: return shape;
    P3D_BUFFERS(P3D_SHAPE)  // NOLINT(bugprone-branch-clone): several rows have one shape
#undef P3D_SHAPE
  }
  return {};
}

std::int64_t bytes_of(Buffer buffer, BlockSizes const& s, ElementBytes e) {
  auto const n = shape_of(buffer, s, e).elements, each = e.of(row_of(buffer).element);
  return n < most_bytes / each ? base::padded(n * each, base::arena_alignment) : most_bytes;
}

BufferSet set_of(std::initializer_list<Buffer> buffers) {
  BufferSet out;
  for (auto b : buffers) out.set(static_cast<std::size_t>(b));
  return out;
}

std::vector<Buffer> list(BufferSet const& set) {
  std::vector<Buffer> out;
  for (std::size_t b = 0; b < num_buffers; ++b)
    if (set[b]) out.push_back(static_cast<Buffer>(b));
  return out;
}

std::int64_t bytes_of(BufferSet const& set, BlockSizes const& s, ElementBytes e) {
  std::int64_t sum = 0;
  for (auto b : list(set)) sum = std::min(most_bytes, sum + bytes_of(b, s, e));
  return sum;
}

BufferSet saved_buffers() {
  return those([](BufferClass c) { return c <= BufferClass::branch_sum; });
}

BufferSet discarded_buffers(StageRecompute const& stage, int l) {
  auto const& r = stage.layer(l);
  return those([&](BufferClass c) {
    switch (c) {
      case BufferClass::norm: return r.norm || r.full;
      case BufferClass::attention:
      case BufferClass::attention_sums: return r.attention || r.full;
      case BufferClass::activation: return r.activation || r.full;
      case BufferClass::layer:
      case BufferClass::statistics: return r.full;
      case BufferClass::branch_sum: return r.full && !stage.keeps_sums;
      default: return false;
    }
  });
}

BufferSet rebuilt_buffers(StageRecompute const& stage, int l) {
  static BufferSet const unread =
      those([](BufferClass c) { return c == BufferClass::statistics || c == BufferClass::attention_sums; });
  return discarded_buffers(stage, l) & ~unread;
}

}  // namespace p3d::layout
