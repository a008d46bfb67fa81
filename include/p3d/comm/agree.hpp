// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes an error that only some ranks see known to all ranks.
//
// Work that a rank does alone (open its data, read a file, allocate memory, make a folder) may fail on one rank and not
// on another: the others would go on and wait for ever. Such a phase runs inside agree(); the whole program runs inside
// leave_together(), which needs no knowledge of the phases.

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
/// any rank, every rank throws base::ReportedError with the exit code of the lowest such rank. Each different error
/// text is printed once, by the lowest rank that has it, with the number of ranks that could not `phase` ("open the
/// training data"); without numbers when all ranks failed alike. Collective: one small all-reduce when all is well.
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

/// Runs `work` on rank 0 alone. When it throws, every rank throws; the error is printed without naming the rank.
/// Collective.
void agree_on_root(Communicator& comm, std::function<void()> const& work);

/// The frame around everything that runs while MPI is up. Runs `work`, which ends in an exit code or in an exception of
/// any type, and returns the exit code that all ranks leave with. An exception that arrives on all ranks (within two
/// seconds) is printed once for each different text, and the ranks end in good order, in bounded time. An exception
/// that the other ranks do not share in that time is printed by this rank, which then ends all ranks with its exit
/// code. Collective.
int leave_together(std::function<int()> const& work);

}  // namespace p3d::comm
