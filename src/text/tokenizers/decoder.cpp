// SPDX-License-Identifier: Apache-2.0
// The decoders of Hugging Face's tokenizers, in the order in which their file lists them. Example: with ByteFallback,
// Fuse and Strip (Llama 2) the tokens "<0xC3>", "<0xA4>" become two bytes each on its own, and the space in front of
// the whole text is removed behind "Fuse".
#include "text/tokenizers/decoder.hpp"

#include "text/tokenizers/json_read.hpp"
#include "text/tokenizers/normalizer.hpp"
#include "text/tokenizers/refuse.hpp"
#include "text/tokenizers/utf8.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <utility>

namespace p3d::text {

Decoder::Decoder(Json const& json, bool byte_level, std::string const& file, std::string const& place) {
  if (!json.is_null()) add(json, byte_level, file, place, 0);
}

void Decoder::add(Json const& json, bool byte_level, std::string const& file, std::string const& place, int depth) {
  JsonObject const object(json, file, place);
  auto const type = object.type();
  if (type == "Sequence") {
    if (depth > 8) bad_tokenizer("at most 8 sequences within each other", "more", object.where("decoders"));
    auto const& list = object.array("decoders");
    for (std::size_t i = 0; i < list.size(); ++i)
      add(list[i], byte_level, file, fmt::format("{}.decoders[{}]", place, i), depth + 1);
    return;
  }
  // Behind "Fuse" the tokens are one text, so later steps see it as a whole.
  auto& steps = fused_ ? whole_ : each_;
  if (type == "Fuse") {
    fused_ = true;
  } else if (type == "ByteLevel" && byte_level) {
    return;
  } else if (!fused_ && !each_.empty() && each_.back().kind == Kind::byte_fallback) {
    // The library joins the bytes of a character first; here each token is decoded by itself.
    lacks(file, place, fmt::format("the decoder \"{}\" behind \"ByteFallback\" without \"Fuse\" between", type));
  } else if (byte_level) {
    lacks(file, place, fmt::format("the decoder \"{}\" with the pre-tokenizer \"ByteLevel\"", type));
  } else if (type == "Replace") {
    steps.push_back({Kind::replace, object.text("content"), {object.pattern("pattern")}});
  } else if (type == "ByteFallback") {
    steps.push_back({Kind::byte_fallback, "", {}});
  } else if (type == "Strip") {
    steps.push_back({Kind::strip,
                     object.text("content"),
                     {},
                     static_cast<std::size_t>(object.count("start")),
                     static_cast<std::size_t>(object.count("stop"))});
    if (steps.back().content.empty()) bad_tokenizer("a character", "an empty string", object.where("content"));
  } else if (type == "Metaspace") {
    auto const scheme =
        object.optional_text("prepend_scheme").value_or(object.flag("add_prefix_space", true) ? "always" : "never");
    steps.push_back({Kind::metaspace, object.text("replacement"), {}, 0, 0, scheme != "never"});
    if (steps.back().content.empty()) bad_tokenizer("a character", "an empty string", object.where("replacement"));
  } else {
    lacks(file, place, fmt::format("the decoder \"{}\"", type));
  }
}

void Decoder::apply(Step const& step, bool first, std::string& text) {
  switch (step.kind) {
    case Kind::replace: {
      std::string valid;
      std::vector<Replaced> ignored;
      replace_invalid(text, valid, ignored);
      text = replace_all(step.pattern.front(), valid, step.content);
      return;
    }
    // A token such as "<0x0A>" stands for the byte 0x0A, and any other one for itself.
    case Kind::byte_fallback: {
      unsigned byte = 0;
      bool const is_byte = text.size() == 6 && text.starts_with("<0x") && text[5] == '>' &&
                           std::from_chars(text.data() + 3, text.data() + 5, byte, 16).ptr == text.data() + 5;
      if (is_byte) text.assign(1, static_cast<char>(byte));
      return;
    }
    case Kind::strip: {
      std::size_t begin = 0, end = text.size();
      for (std::size_t i = 0; i < step.start && std::string_view(text).substr(begin).starts_with(step.content); ++i)
        begin += step.content.size();
      for (std::size_t i = 0;
           i < step.stop && end > begin && std::string_view(text).substr(begin, end - begin).ends_with(step.content);
           ++i)
        end -= step.content.size();
      text = text.substr(begin, end - begin);
      return;
    }
    // Spaces take the place of the character that stands for them, but not at the start of a text, where the encoder
    // put one in.
    case Kind::metaspace: {
      std::string out;
      for (std::size_t at = 0; at < text.size();) {
        if (!std::string_view(text).substr(at).starts_with(step.content)) {
          out.push_back(text[at++]);
          continue;
        }
        if (!(first && step.drop_first)) out.push_back(' ');
        at += step.content.size();
      }
      text = std::move(out);
      return;
    }
  }
}

// Most tokenizers have no step for single tokens: their text is appended as it is.
void Decoder::token(std::string_view token, bool first, std::string& out) const {
  if (each_.empty()) {
    out += token;
    return;
  }
  std::string text(token);
  for (auto const& step : each_) apply(step, first, text);
  out += text;
}

void Decoder::finish(std::string& text) const {
  for (auto const& step : whole_) apply(step, true, text);
}

}  // namespace p3d::text
