// SPDX-License-Identifier: Apache-2.0
#pragma once
// Failures of single ranks become failures of all: a rank that throws alone would leave the others waiting.

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/io/file_watch.hpp>

#include <optional>

namespace p3d::io {

/// Runs `work` and returns its error, or nothing when there was none.
template <class Work>
std::optional<base::ErrorText> attempt(Work&& work) {
  try {
    work();
  } catch (base::Error const& e) {
    return e.text();
  } catch (std::exception const& e) {
    return base::ErrorText{.expected = "a checkpoint", .found = e.what(), .where = "", .fix = "report this"};
  }
  return {};
}

/// Runs `work`, which is file operations, by apart(), and returns its error, or nothing when there was none.
template <class Work>
std::optional<base::ErrorText> attempt_apart(Work&& work) {
  return attempt([&] { apart(work); });
}

/// The error of the first rank that has one, with its number, on every rank; nothing when none has. Collective.
std::optional<base::ErrorText> first_error(comm::Communicator& world, std::optional<base::ErrorText> mine);

}  // namespace p3d::io
