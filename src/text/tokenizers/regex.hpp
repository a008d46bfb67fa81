// SPDX-License-Identifier: Apache-2.0
#pragma once
// Regular expressions of tokenizers, by PCRE2 with its JIT compiler, on valid UTF-8.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace p3d::text {

/// The syntax in which a pattern is written.
enum class RegexSyntax {
  oniguruma,  ///< Ruby's, as Hugging Face's tokenizers use it
  rust,       ///< Rust's, as tiktoken uses it
  literal,    ///< no pattern: just these characters
};

/// A compiled pattern, safe to use from several threads.
class Regex {
public:
  /// Throws base::Error (bad_input) with `where` for a text that is no pattern, and for one that PCRE2 would read
  /// differently.
  Regex(std::string const& pattern, RegexSyntax syntax, std::string where);

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  /// Finds the first match at or after `from`; false when there is none. An empty match is a match too.
  bool find(std::string_view text, std::size_t from, Match& match) const;

private:
  struct Code;
  std::shared_ptr<Code const> code_;
};

/// The pattern in PCRE2's syntax, in which \s, \w and \h mean what they mean to the other library.
std::string to_pcre2(std::string const& pattern, RegexSyntax syntax, std::string const& where);

}  // namespace p3d::text
