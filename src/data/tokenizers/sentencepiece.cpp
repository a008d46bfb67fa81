// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizers/readers.hpp"
#include "data/tokenizers/refuse.hpp"

#include <p3d/base/error.hpp>

#if P3D_SENTENCEPIECE

#include "data/tokenizers/added_tokens.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <filesystem>
#include <stdexcept>
#include <utility>

namespace p3d::data {

namespace {

namespace sp = sentencepiece;

class SentencePiece final : public Tokenizer {
public:
  SentencePiece(std::string const& path, std::string const& text)
      : name_(std::filesystem::path(path).filename().string()) {
    auto const status = model_.LoadFromSerializedProto(text);
    if (!status.ok()) bad_tokenizer("a model of SentencePiece", status.ToString(), path);
    if (model_.GetPieceSize() < 1) bad_tokenizer("a model of SentencePiece", "no piece in it", path);
    hash_ = XXH64(text.data(), text.size(), 0);
    std::vector<AddedToken> special;
    std::vector<std::string> texts;
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      if (!model_.IsControl(id)) continue;
      texts.push_back(model_.IdToPiece(id));
      special.push_back({.id = id, .content = texts.back(), .special = true});
    }
    special_ = AddedTokens(std::move(special), texts);
  }

  std::int64_t vocab_size() const override { return model_.GetPieceSize(); }

  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override {
    special_.split(
        text, special, [&](std::string_view part) { encode_plain(part, out); },
        [&](std::int32_t id) { out.push_back(id); });
  }

  void decode(std::int32_t token, std::string& out) const override {
    check(token);
    if (model_.IsControl(token)) return;
    auto const& piece = model_.IdToPiece(token);
    if (model_.IsByte(token)) {
      out.push_back(static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      return;
    }
    if (model_.IsUnknown(token)) {
      out += " \xE2\x81\x87 ";  // as the library prints it
      return;
    }
    constexpr std::string_view space = "\xE2\x96\x81";
    for (std::size_t at = 0; at < piece.size();) {
      bool const is_space = std::string_view(piece).substr(at).starts_with(space);
      out.push_back(is_space ? ' ' : piece[at]);
      at += is_space ? space.size() : 1;
    }
  }

  std::string decode(std::vector<std::int32_t> const& tokens) const override {
    for (auto token : tokens) check(token);
    std::string out;
    auto const status = model_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &out);
    if (!status.ok()) throw std::runtime_error(status.ToString());
    return out;
  }

  std::int32_t end_of_document() const override { return model_.eos_id(); }

  std::int32_t find(std::string_view token) const override {
    auto const id = model_.PieceToId(std::string(token));
    return model_.IdToPiece(id) == token ? id : -1;
  }
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override {
    return fmt::format("{}: SentencePiece, {} tokens", name_, model_.GetPieceSize());
  }

private:
  void check(std::int32_t token) const {
    if (token >= 0 && token < model_.GetPieceSize()) return;
    throw base::Error({.expected = fmt::format("a token from 0 to {}", model_.GetPieceSize() - 1),
                       .found = fmt::format("{}", token),
                       .where = name_,
                       .fix = "use the tokenizer that the tokens were made with"},
                      base::ExitCode::bad_input);
  }

  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
    std::vector<int> ids;
    auto const status = model_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) {
      throw base::Error({.expected = "a text that SentencePiece takes",
                         .found = status.ToString(),
                         .where = name_,
                         .fix = "divide it into documents"},
                        base::ExitCode::bad_input);
    }
    out.insert(out.end(), ids.begin(), ids.end());
  }

  std::string name_;
  sp::SentencePieceProcessor model_;
  AddedTokens special_;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(std::string const& path, std::string const& text) {
  return std::make_unique<SentencePiece>(path, text);
}

}  // namespace p3d::data

#else

namespace p3d::data {

std::unique_ptr<Tokenizer> read_sentencepiece(std::string const& path, std::string const&) {
  throw base::Error({.expected = "a tokenizer that this p3d can read",
                     .found = "a model of SentencePiece, and a p3d that was built without that library",
                     .where = path,
                     .fix = "install libsentencepiece-dev (Debian) or sentencepiece (Spack), and build p3d again"},
                    base::ExitCode::bad_input);
}

}  // namespace p3d::data

#endif
