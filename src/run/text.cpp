// SPDX-License-Identifier: Apache-2.0
#include <p3d/run/text.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/engine/precision.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

namespace p3d::run {

namespace {

/// The tokens of a prompt; an empty one becomes the end of a document, or a line break where there is no such token.
std::vector<int> prompt_tokens(text::Tokenizer const& tokenizer, std::string const& prompt, int document_end,
                               std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(prompt, tokens, true);
  if (!tokens.empty()) return {tokens.begin(), tokens.end()};
  if (document_end >= 0) return {document_end};
  tokens = tokenizer.encode("\n");
  return {static_cast<int>(std::min<std::int64_t>(tokens.empty() ? 0 : tokens.front(), vocab - 1))};
}

/// Where the first of `stops` begins in `text`, looking only where the last `fresh` bytes matter; npos: nowhere.
std::size_t first_stop(std::string const& text, std::vector<std::string> const& stops, std::size_t fresh) {
  auto place = std::string::npos;
  for (auto const& stop : stops) {
    auto const before = fresh + stop.size();
    place = std::min(place, text.find(stop, text.size() > before ? text.size() - before : 0));
  }
  return place;
}

/// The `most` likeliest tokens and their log-probabilities (log softmax of `logits`); equal ones by their number.
std::vector<TokenLogprob> likeliest(std::span<double const> logits, std::size_t most) {
  double const top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  std::vector<TokenLogprob> all;
  for (double x : logits) sum += std::exp(x - top);
  for (double x : logits) all.push_back({static_cast<int>(all.size()), x - top - std::log(sum)});
  auto const end = all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size()));
  std::partial_sort(all.begin(), end, all.end(), [](auto const& a, auto const& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  return {all.begin(), end};
}

}  // namespace

RunTokenizer open_tokenizer(std::string const& path, std::string const& pattern, std::int64_t vocab_size,
                            bool keep_file) {
  RunTokenizer out;
  auto text = text::read_tokenizer_file(path);
  out.tokenizer = text::parse_tokenizer(path, text, pattern);
  if (auto const note = text::require_vocabulary(*out.tokenizer, vocab_size); !note.empty() && keep_file)
    base::log_root(note);
  auto& s = out.stored;
  s.name = std::filesystem::path(path).filename().string();
  if (!base::is_file_name(s.name)) {  // no reader would take a checkpoint that carries such a name
    base::refuse({.expected = "a tokenizer file whose name is UTF-8 without control characters",
                  .found = s.name,
                  .where = path,
                  .fix = "rename the file"});
  }
  s.pattern = pattern;
  s.hash = out.tokenizer->hash();
  s.end = out.tokenizer->end_of_document();
  if (keep_file && std::ssize(text) <= io::StoredTokenizer::largest_file) s.file = std::move(text);
  return out;
}

RunTokenizer open_tokenizer(config::Config const& c, bool keep_file) {
  // Data of other kinds than text may have other tokens than bytes, without a tokenizer; rules_data.cpp looks at text.
  if (c.data.tokenizer == "bytes") return {text::make_tokenizer("bytes"), {}};
  return open_tokenizer(c.data.tokenizer, c.data.tokenizer_pattern, c.model.vocab_size, keep_file);
}

std::vector<DrawnText> continue_texts(engine::AnyTrainer& trainer, text::Tokenizer const& tokenizer,
                                      std::vector<std::string> const& prompts, TextOptions options) {
  auto const vocab = trainer.config().model.vocab_size;
  auto& draw = options.draw;
  int const document_end = options.document_end.value_or(tokenizer.end_of_document());
  draw.vocabulary = std::min(vocab, tokenizer.vocab_size());
  std::vector<DrawnText> out(prompts.size());
  std::vector<std::vector<int>> tokens;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    tokens.push_back(prompt_tokens(tokenizer, prompts[i], document_end, vocab));
    out[i].prompt_tokens = tokens.back();
  }
  int const end = options.ends ? document_end : -1;
  if (end >= 0) draw.stop_tokens.push_back(end);
  std::vector<std::string> const& stops = options.stop;
  draw.complete = [&](std::size_t number, std::vector<int> const& drawn) {
    if (drawn.back() == end) return true;
    auto& text = out[number].text;
    auto const before = text.size();
    tokenizer.decode(drawn.back(), text);
    auto const stop = first_stop(text, stops, text.size() - before);
    if (stop == std::string::npos) return false;
    text.resize(stop);
    return true;
  };
  if (options.logprobs > 0)
    draw.observe = [&](std::size_t number, std::span<double const> logits) {
      out[number].logprobs.push_back(likeliest(logits, static_cast<std::size_t>(options.logprobs)));
    };
  auto const drawn = trainer.sample(tokens, draw);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].tokens = drawn[i];
  return out;
}

}  // namespace p3d::run
