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
    comm::broadcast_text(world, *text, static_cast<int>(first));
  }
  out.where += fmt::format(" (rank {})", first);
  return out;
}

}  // namespace p3d::io
