// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors that only some ranks see: told by those that have them, known to all.
//
// What a rank does alone (open its data, read a file, allocate memory, make a folder) may fail on one rank and not on
// another, whatever the code around it expects: the others would go on and wait. Such a phase runs inside agree(); the
// whole program runs inside leave_together(), which needs no expectation at all.

#include <p3d/comm/communicator.hpp>

#include <functional>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace p3d::comm {

namespace detail {
void agree(Communicator& comm, std::string_view phase, std::function<void()> const& work);
}

/// Runs `work`, which is local to each rank (no communication inside), and returns what it returns. When it throws on
/// any rank, every rank throws base::ReportedError with the exit code of the lowest such rank, and each different text
/// is printed once: by the lowest rank that has it, which says how many ranks could not `phase` ("open the training
/// data"); without naming ranks when all failed alike. Collective, one small all-reduce when all is well.
template <class Work>
auto agree(Communicator& comm, std::string_view phase, Work&& work) -> std::invoke_result_t<Work&> {
  using Result = std::invoke_result_t<Work&>;
  if constexpr (std::is_void_v<Result>) {
    detail::agree(comm, phase, work);
  } else {
    std::optional<Result> result;
    detail::agree(comm, phase, [&] { result.emplace(work()); });
    return *std::move(result);
  }
}

/// The same for work of rank 0 alone, whose error is printed without naming it. Collective.
void agree_on_root(Communicator& comm, std::function<void()> const& work);

/// The one door around everything that runs with MPI up. Runs `work`, which ends in an exit code or in an exception of
/// any type, and returns the exit code that all ranks leave with. An exception that arrives on all ranks (within two
/// seconds) is printed once for each different text, and the ranks end in good order, in bounded time. One that the
/// other ranks do not share in that time is printed by this rank, which then ends all ranks with its exit code.
/// Collective.
int leave_together(std::function<int()> const& work);

}  // namespace p3d::comm
