// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>

#include <p3d/base/printable.hpp>

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>

namespace p3d::base {

std::string format(ErrorText const& text) {
  std::string out;
  auto line = [&](char const* label, std::string const& value) {
    if (value.empty()) return;
    if (!out.empty()) out += '\n';
    out += fmt::format("{:<10}{}", label, printable(value));  // the value may quote a file that p3d did not make
  };
  line("expected:", text.expected);
  line("found:", text.found);
  line("where:", text.where);
  line("fix:", text.fix);
  return out;
}

Error::Error(ErrorText text, ExitCode code) : std::runtime_error(format(text)), text_(std::move(text)), code_(code) {}

void refuse(ErrorText text) { throw Error(std::move(text), ExitCode::bad_input); }

void refuse(std::string expected, std::string found, std::string where, std::string fix) {
  refuse({std::move(expected), std::move(found), std::move(where), std::move(fix)});
}

Failure current_failure() noexcept {
  try {
    throw;
  } catch (ReportedError const& e) {
    return {e.what(), e.code(), true};
  } catch (Error const& e) {
    return {e.what(), e.code(), false};
  } catch (std::bad_alloc const&) {
    return {
        format({.expected = "enough memory",
                .found = "an allocation that failed (std::bad_alloc)",
                .where = "",
                .fix = "use fewer ranks on a node, a smaller model or batch.micro, or raise the memory limit of the "
                       "process (ulimit -v) or of the job"}),
        ExitCode::run_failed, false};
  } catch (std::exception const& e) {
    return {format({.expected = "an operation of the C++ library to succeed",
                    .found = e.what(),
                    .where = "",
                    .fix = "if nothing in the input explains it, please report it with the input file"}),
            ExitCode::run_failed, false};
  } catch (...) {
    return {format({.expected = "no exception of an unknown type",
                    .found = "one",
                    .where = "",
                    .fix = "this is a defect of p3d: please report it with the input file"}),
            ExitCode::run_failed, false};
  }
}

void contract_violated(char const* condition, char const* file, int line, std::string_view message) {
  throw Error({.expected = fmt::format("{} ({})", message, condition),
               .found = "the opposite",
               .where = fmt::format("{}:{}", file, line),
               .fix = "this is a defect of p3d: please report it with the input file"});
}

}  // namespace p3d::base
