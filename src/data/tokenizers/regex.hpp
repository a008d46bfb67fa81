// SPDX-License-Identifier: Apache-2.0
#pragma once
// Regular expressions of tokenizers, by PCRE2 with its compiler, on valid UTF-8.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace p3d::data {

/// Whose syntax a pattern is written in.
enum class RegexSyntax {
  oniguruma,  ///< Hugging Face's tokenizers: Ruby's
  rust,       ///< tiktoken
  literal,    ///< no pattern: these very characters
};

/// Safe to use from several threads.
class Regex {
public:
  /// Throws base::Error (bad_input) with `where` for what is no pattern, and for what PCRE2 would read otherwise.
  Regex(std::string const& pattern, RegexSyntax syntax, std::string where);

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  /// The first match at or after `from`; false: none. An empty match is one too.
  bool find(std::string_view text, std::size_t from, Match& match) const;

private:
  struct Code;
  std::shared_ptr<Code const> code_;
};

/// The pattern in PCRE2's syntax: \s, \w and \h mean what they mean to the other library.
std::string to_pcre2(std::string const& pattern, RegexSyntax syntax, std::string const& where);

}  // namespace p3d::data
