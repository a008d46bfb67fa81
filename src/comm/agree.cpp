// SPDX-License-Identifier: Apache-2.0
// Agreement on errors. Each rank's outcome is four numbers, and the hash of its text tells who has the same error: the
// lowest rank of each text prints it. Example: when ranks 2 and 3 of 8 lack a file, rank 2 prints "p3d stops: 2 of 8
// ranks could not open the training data, this is the first of them", and all ranks throw ReportedError.
#include <p3d/comm/agree.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/hash.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/timer.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "internal.hpp"

namespace p3d::comm {

namespace {

constexpr double grace_s = 2.0;        ///< seconds that an exception waits for those of the other ranks
constexpr unsigned good_order_s = 10;  ///< seconds that the end in good order may take

/// The end of a phase on one rank, as it is sent to the others.
struct Outcome {
  std::int64_t failed = 0;
  std::int64_t reported = 0;  ///< the error has been printed already
  std::int64_t code = 0;      ///< exit code
  std::int64_t text = 0;      ///< hash of the error's text
};
constexpr std::int64_t words = sizeof(Outcome) / sizeof(std::int64_t);

Outcome outcome_of(base::Failure const& failure) {
  return {1, failure.reported ? 1 : 0, static_cast<std::int64_t>(failure.code),
          static_cast<std::int64_t>(base::fnv1a(failure.text))};
}

std::string ranks(std::size_t count, std::size_t all) { return fmt::format("{} of {} ranks", count, all); }

/// Prints this rank's text if it is the lowest rank with that text. `phase` may be empty.
void tell(std::vector<Outcome> const& all, std::size_t here, std::string_view phase, std::string const& text) {
  auto const& own = all[here];
  if (own.failed == 0 || own.reported != 0) return;
  auto const same = [&](Outcome const& o) { return o.failed != 0 && o.reported == 0 && o.text == own.text; };
  if (std::find_if(all.begin(), all.end(), same) != all.begin() + static_cast<std::ptrdiff_t>(here)) return;
  auto const alike = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), same));
  if (alike == all.size()) {
    base::error_once(text);
    return;
  }
  base::error_here(fmt::format("p3d stops: {} could not {}{}\n{}", ranks(alike, all.size()),
                               phase.empty() ? "go on" : phase, alike > 1 ? ", this is the first of them" : "", text));
}

/// The outcome of the lowest rank that failed; null when none did.
Outcome const* first_failed(std::vector<Outcome> const& all) {
  auto const it = std::find_if(all.begin(), all.end(), [](Outcome const& o) { return o.failed != 0; });
  return it == all.end() ? nullptr : &*it;
}

/// The error of a rank that has said what failed. On every rank what() is the text of that rank.
class SaidError : public base::ReportedError {
public:
  SaidError(std::string text, base::ExitCode code)
      : ReportedError({.expected = "every rank to do its part",
                       .found = "a rank that could not, and said why",
                       .where = "",
                       .fix = "see that rank's message"},
                      code),
        said_(std::move(text)) {}
  char const* what() const noexcept override { return said_.c_str(); }

private:
  std::string said_;
};

/// Throws on every rank the error whose text rank `root` has. Collective.
[[noreturn]] void throw_reported(Communicator& comm, std::string text, std::size_t root, std::int64_t code) {
  broadcast_text(comm, text, static_cast<int>(root));
  throw SaidError(std::move(text), static_cast<base::ExitCode>(code));
}

}  // namespace

void detail::agree(Communicator& comm, std::string_view phase, std::function<void()> const& work) {
  Outcome own;
  base::Failure failure;
  try {
    work();
  } catch (...) {
    failure = base::current_failure();
    own = outcome_of(failure);
  }
  std::int64_t failed = own.failed;
  comm.all_reduce(&failed, 1, Type::int64, Reduction::max).wait();
  if (failed == 0) return;
  auto const size = static_cast<std::size_t>(comm.size()), here = static_cast<std::size_t>(comm.rank());
  std::vector<Outcome> all(size);
  all[here] = own;
  comm.all_gather(&own, all.data(), words, Type::int64).wait();
  tell(all, here, phase, failure.text);
  auto const* const first = first_failed(all);
  throw_reported(comm, failure.text, static_cast<std::size_t>(first - all.data()), first->code);
}

void agree_on_root(Communicator& comm, std::function<void()> const& work) {
  std::array<std::int64_t, 2> state{0, 0};  // failed, exit code
  std::string text;
  if (comm.rank() == 0) {
    try {
      work();
    } catch (...) {
      auto const failure = base::current_failure();
      if (!failure.reported) base::error_once(failure.text);
      text = failure.text;
      state = {1, static_cast<std::int64_t>(failure.code)};
    }
  }
  comm.broadcast(state.data(), 2, Type::int64, 0).wait();
  if (state[0] != 0) throw_reported(comm, text, 0, state[1]);
}

int leave_together(std::function<int()> const& work) {
  Communicator door(MPI_COMM_WORLD, "door");  // made before anything can fail on one rank alone
  auto const size = static_cast<std::size_t>(door.size()), here = static_cast<std::size_t>(door.rank());
  Outcome own;
  base::Failure failure;
  try {
    own.code = work();
  } catch (...) {
    failure = base::current_failure();
    own = outcome_of(failure);
  }
  std::vector<Outcome> all(size);
  all[here] = own;
  if (size > 1) {
    try {
      auto arrived = door.all_gather(&own, all.data(), words, Type::int64);
      base::Stopwatch const watch;
      while (own.failed != 0 && !arrived.test()) {
        if (watch.seconds() > grace_s) {
          if (own.reported == 0) {
            base::error_here(
                fmt::format("p3d stops: this rank cannot go on, the other ranks did not follow\n{}", failure.text));
          }
          abort_all(static_cast<int>(own.code));
        }
        usleep(1000);
      }
      arrived.wait();
    } catch (...) {  // MPI itself fails: its error is printed after that of this rank
      if (own.failed != 0 && own.reported == 0) base::error_here("p3d stops:\n" + failure.text);
      base::error_here("p3d stops:\n" + base::current_failure().text);
      abort_all(static_cast<int>(own.failed != 0 ? own.code : static_cast<std::int64_t>(base::ExitCode::run_failed)));
    }
  }
  auto const* const first = first_failed(all);
  if (first == nullptr) return static_cast<int>(own.code);
  tell(all, here, "", failure.text);
  // MPI_Finalize may wait for a message that an exception left behind: the alarm limits that.
  detail::leave_within(good_order_s, static_cast<int>(first->code));
  return static_cast<int>(first->code);
}

}  // namespace p3d::comm
