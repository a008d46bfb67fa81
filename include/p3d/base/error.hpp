// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors that say what was expected, what was found, where, and what to do next.

#include <stdexcept>
#include <string>
#include <string_view>

namespace p3d::base {

/// The exit codes of the process; `p3d --help` and docs/reference.md list the same numbers.
enum class ExitCode : int {
  ok = 0,
  run_failed = 1,         ///< an error while running (I/O, MPI, an exception on some rank)
  bad_input = 2,          ///< the input or the command line is wrong; nothing was started
  timeout = 3,            ///< a wait outlasted comm.timeout_s
  not_finite = 4,         ///< the loss or a gradient became NaN or infinite
  checkpoint_failed = 5,  ///< a checkpoint could not be written, and checkpoint.on_error is "stop" or it was the last
  stopped_unsaved = 6,    ///< stopped by a signal or run.time_limit with checkpoint.every = 0: nothing was saved
  /// "resume me": stopped by a signal or run.time_limit at a step boundary and saved; run again to go on (EX_TEMPFAIL)
  interrupted = 75
};

/// The four parts that every message has. `where` may be empty when the thrower does not know; the reporter then adds
/// the rank.
struct ErrorText {
  std::string expected;
  std::string found;
  std::string where;
  std::string fix;
};

/// The exception of p3d. what() returns the four parts as lines of text.
class Error : public std::runtime_error {
public:
  Error(ErrorText text, ExitCode code = ExitCode::run_failed);
  ErrorText const& text() const noexcept { return text_; }
  ExitCode code() const noexcept { return code_; }

private:
  ErrorText text_;
  ExitCode code_;
};

/// Throws an Error of what cannot be done as the input, a file or the command line says: ExitCode::bad_input.
[[noreturn]] void refuse(ErrorText text);
[[noreturn]] void refuse(std::string expected, std::string found, std::string where, std::string fix);

/// An error whose text is printed already, on the rank or ranks that it concerns. A handler ends the process with
/// code() and prints nothing more.
class ReportedError : public Error {
public:
  using Error::Error;
};

/// Runs `work` and returns its result. An Error of `work`, whatever its code, is thrown again as bad input: nothing was
/// started. A ReportedError passes unchanged.
template <class Work>
decltype(auto) as_bad_input(Work&& work) {
  try {
    return work();
  } catch (ReportedError const&) {
    throw;
  } catch (Error const& e) {
    throw Error(e.text(), ExitCode::bad_input);
  }
}

/// The text and exit code of a caught exception.
struct Failure {
  std::string text;  ///< the four parts as lines, or what() of an Error that has another form
  ExitCode code = ExitCode::run_failed;
  bool reported = false;  ///< true for a ReportedError, which is printed already
};
/// Describes the exception that is being handled; call it inside a catch, of anything. An exception that is not an
/// Error (std::bad_alloc and others of the library) gets its four parts here, and exit code 1. Throws nothing.
Failure current_failure() noexcept;

/// The four parts as lines; empty parts are left out.
std::string format(ErrorText const& text);

/// Reports a violated contract inside p3d: a caller in p3d is wrong, not the user. Throws Error with file and line.
[[noreturn]] void contract_violated(char const* condition, char const* file, int line, std::string_view message);

}  // namespace p3d::base

/// Checks an internal contract in every build type; keep it out of inner loops.
#define P3D_REQUIRE(condition, message)                                                        \
  do {                                                                                         \
    if (!(condition)) ::p3d::base::contract_violated(#condition, __FILE__, __LINE__, message); \
  } while (false)
