// SPDX-License-Identifier: Apache-2.0
// Regular expressions by PCRE2, which compiles them to machine code. Texts are known to be UTF-8 here, so its own check
// of each text is left out.
#include "text/tokenizers/regex.hpp"

#include "text/tokenizers/refuse.hpp"
#include "text/tokenizers/utf8.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

namespace p3d::text {

namespace {

/// The text of an error code of PCRE2.
std::string message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<char const*>(text.data());
}

/// The buffers of a search, one set in each thread. The stack is large, for patterns that go back far in long texts.
struct Search {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 64 << 20, nullptr);
  Search() {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Search() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Search(Search const&) = delete;
  Search& operator=(Search const&) = delete;
};

/// The buffers of this thread.
Search& search() {
  thread_local Search one;
  return one;
}

}  // namespace

/// A compiled pattern, and its place in a file for messages.
struct Regex::Code {
  pcre2_code* code = nullptr;
  bool compiled = false;  ///< compiled to machine code
  std::string where;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string const& pattern, RegexSyntax syntax, std::string where) {
  if (auto const bad = first_invalid(pattern); bad != std::string::npos)
    bad_tokenizer("a pattern in UTF-8", fmt::format("byte {} of it is none", bad), where);
  auto const text = to_pcre2(pattern, syntax, where);
  auto const made = std::make_shared<Code>();
  made->where = where;
  std::uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK;
  if (syntax == RegexSyntax::literal) options |= PCRE2_LITERAL;
  if (syntax != RegexSyntax::literal) options |= PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (syntax == RegexSyntax::rust) options |= PCRE2_DOLLAR_ENDONLY;
  if (syntax == RegexSyntax::oniguruma) options |= PCRE2_MULTILINE;
  int code = 0;
  PCRE2_SIZE at = 0;
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> const context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  made->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &code, &at, context.get());
  if (made->code == nullptr)
    bad_tokenizer("a regular expression", fmt::format("{} at byte {} of {}", message(code), at, text), where);
  made->compiled = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = made;
}

bool Regex::find(std::string_view text, std::size_t from, Match& match) const {
  auto& s = search();
  auto const* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int const rc = code_->compiled
                     ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, s.data, s.context)
                     : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, s.data, s.context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) {
    base::refuse({.expected = "a text that the tokenizer's pattern can split",
                  .found = fmt::format("{} at byte {} of {}", message(rc), from, text.size()),
                  .where = code_->where,
                  .fix = "divide the text into documents, or use a pattern that looks back less"});
  }
  auto const* const found = pcre2_get_ovector_pointer(s.data);
  match = {found[0], found[1]};
  if (match.begin > match.end) match.begin = match.end;  // happens with \K in a look-around
  return true;
}

}  // namespace p3d::text
