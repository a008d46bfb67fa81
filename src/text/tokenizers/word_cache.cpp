// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/word_cache.hpp"

#include <atomic>

namespace p3d::text {

std::uint64_t next_tokenizer_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

WordCache& word_cache(std::uint64_t tokenizer) {
  struct Kept {
    std::uint64_t tokenizer = 0;
    WordCache cache;
  };
  thread_local Kept kept;
  if (kept.tokenizer != tokenizer) kept = {tokenizer, {}};
  return kept.cache;
}

}  // namespace p3d::text
