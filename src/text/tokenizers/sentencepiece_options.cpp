// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/sentencepiece_options.hpp"

#include <cstdint>
#include <optional>

namespace p3d::text {

namespace {

/// A field of a protocol buffer: a number, or bytes.
struct Field {
  std::uint64_t number = 0, value = 0;
  std::string_view bytes;
};

/// Reads the fields of a message, one after the other.
class Message {
public:
  explicit Message(std::string_view bytes) : left_(bytes) {}

  std::optional<Field> next() {
    auto const key = varint();
    if (!key) return {};
    Field field{*key >> 3, 0, {}};
    switch (*key & 7) {
      case 0: {
        auto const value = varint();
        if (!value) return {};
        field.value = *value;
        return field;
      }
      case 1: return take(8) ? std::optional(field) : std::nullopt;
      case 2: {
        auto const size = varint();
        if (!size || *size > left_.size()) return {};
        field.bytes = left_.substr(0, *size);
        left_.remove_prefix(*size);
        return field;
      }
      case 5: return take(4) ? std::optional(field) : std::nullopt;
      default: return {};
    }
  }

private:
  bool take(std::size_t n) {
    if (left_.size() < n) return false;
    left_.remove_prefix(n);
    return true;
  }
  /// Reads a number of variable length, 7 bits in each byte.
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      auto const byte = static_cast<unsigned char>(left_.front());
      left_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return {};
  }
  std::string_view left_;
};

}  // namespace

// Numbers of fields are those of sentencepiece_model.proto.
SentencePieceOptions sentencepiece_options(std::string_view model) {
  SentencePieceOptions out;
  Message message(model);
  while (auto const field = message.next()) {
    bool const trainer = field->number == 2, normalizer = field->number == 3;
    if (!trainer && !normalizer) continue;
    Message inner(field->bytes);
    while (auto const f = inner.next()) {
      if (trainer && f->number == 3) out.bpe = f->value == 2;
      if (trainer && f->number == 24) out.whitespace_as_suffix = f->value != 0;
      if (normalizer && f->number == 1) out.normalization = f->bytes;
      if (normalizer && f->number == 3) out.add_dummy_prefix = f->value != 0;
      if (normalizer && f->number == 5) out.escape_whitespaces = f->value != 0;
    }
  }
  return out;
}

}  // namespace p3d::text
