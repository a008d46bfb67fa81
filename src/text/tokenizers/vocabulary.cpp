// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/vocabulary.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace p3d::text {

Vocabulary::Vocabulary(std::size_t entries, std::size_t ids)
    : texts_(ids), table_(std::bit_ceil(2 * entries + 2), -1) {}

std::string_view Vocabulary::text(std::int32_t id) const {
  auto const& t = texts_[static_cast<std::size_t>(id)];
  return t.offset == none ? std::string_view() : std::string_view(bytes_).substr(t.offset, t.bytes);
}

std::size_t Vocabulary::slot(std::string_view text) const {
  auto const mask = table_.size() - 1;
  auto at = XXH3_64bits(text.data(), text.size()) & mask;
  while (table_[at] >= 0 && this->text(table_[at]) != text) at = (at + 1) & mask;
  return at;
}

std::int32_t Vocabulary::find(std::string_view text) const { return text.size() > longest_ ? -1 : table_[slot(text)]; }

bool Vocabulary::add(std::int32_t id, std::string_view text) {
  auto const at = slot(text);
  if (table_[at] >= 0 || !add_unfindable(id, text)) return false;
  table_[at] = id;
  longest_ = std::max(longest_, text.size());
  return true;
}

bool Vocabulary::add_unfindable(std::int32_t id, std::string_view text) {
  if (has(id)) return false;
  texts_[static_cast<std::size_t>(id)] = {static_cast<std::uint32_t>(bytes_.size()),
                                          static_cast<std::uint32_t>(text.size())};
  bytes_.append(text);
  ++entries_;
  return true;
}

}  // namespace p3d::text
