// SPDX-License-Identifier: Apache-2.0
#include "together.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace p3d::io {

std::optional<base::ErrorText> first_error(comm::Communicator& world, std::optional<base::ErrorText> mine) {
  std::int64_t first = mine ? world.rank() : world.size();
  world.all_reduce(&first, 1, comm::Type::int64, comm::Reduction::min).wait();
  if (first == world.size()) return {};
  base::ErrorText out = mine.value_or(base::ErrorText{});
  for (auto* text : {&out.expected, &out.found, &out.where, &out.fix}) {
    auto length = static_cast<std::int64_t>(text->size());
    world.broadcast(&length, 1, comm::Type::int64, static_cast<int>(first)).wait();
    text->resize(static_cast<std::size_t>(length));
    if (length > 0) world.broadcast(text->data(), length, comm::Type::byte, static_cast<int>(first)).wait();
  }
  out.where += fmt::format(" (rank {})", first);
  return out;
}

}  // namespace p3d::io
