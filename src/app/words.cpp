// SPDX-License-Identifier: Apache-2.0
// Words of the command line and lines of answers, shared by the commands. Errors of words are base::Error like all
// others, with a fix; numbers are read strictly, so that "10x" or "1e999" is no number.
#include "words.hpp"

#include "command_line.hpp"

#include <p3d/base/printable.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/report/terminal.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace p3d::app {

namespace {

namespace fs = std::filesystem;

/// The name of the command that the words reached: "p3d schedule show".
std::string name_of(CLI::App const& app) {
  auto name = app.get_name();
  for (auto const* sub : app.get_subcommands()) name += " " + name_of(*sub);
  return name;
}

/// True where a file is written beside the path and takes its place: for a regular file, and where there is nothing.
/// What is behind a link to nothing, or behind the system's link to an open file (/dev/stderr), is written into.
bool is_replaced(std::string const& path) {
  std::error_code ignored;
  auto const kind = fs::status(path, ignored).type();
  bool const link = fs::is_symlink(path, ignored);
  if (link && (path.starts_with("/dev/") || path.starts_with("/proc/"))) return false;
  return kind == fs::file_type::regular || (kind == fs::file_type::not_found && !link);
}

/// Throws for a file that cannot be written, with the system's reason.
[[noreturn]] void refuse_to_write(std::string const& path, std::string const& why, std::string const& where) {
  base::refuse("a file to write", fmt::format("{}: {}", path, why), where,
               "choose another path, or see to its folder, its permissions and the free space");
}

}  // namespace

std::vector<std::string> left_out_lines(std::vector<std::string> const& files) {
  // A folder with thousands of pictures among its texts must not fill the screen.
  constexpr std::size_t most = 20;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(most, files.size()); ++i)
    out.push_back("left out, as it is no text: " + files[i]);
  if (files.size() > most) out.push_back(fmt::format("and {} more", files.size() - most));
  return out;
}

void say(std::string_view line) { std::fputs((base::printable(line) + "\n").c_str(), stdout); }

std::string text_for_output(std::string text) {
  return report::terminal_columns() > 0 ? base::printable(text) : std::move(text);
}

base::Error wrong_words(std::string expected, std::string found, std::string fix) {
  return {{.expected = std::move(expected), .found = std::move(found), .where = "command line", .fix = std::move(fix)},
          base::ExitCode::bad_input};
}

std::vector<std::string> reversed_words(int argc, char const* const* argv) {
  auto words = comm::command_words(argc, argv);
  std::reverse(words.begin(), words.end());
  return words;
}

std::optional<int> parse_words(CLI::App& app, int argc, char** argv) {
  bool const speaks = launcher_rank() == 0;
  try {
    app.parse(reversed_words(argc, argv));
    return {};
  } catch (CLI::CallForHelp const& e) {
    std::ostringstream out, err;
    app.exit(e, out, err);
    if (speaks) std::fputs(out.str().c_str(), stdout);
    return 0;
  } catch (CLI::ParseError const& e) {
    if (!speaks) return static_cast<int>(base::ExitCode::bad_input);
    // A CLI11 message may end with a line break, and the error text adds its own.
    std::string found = e.what();
    while (found.ends_with('\n')) found.pop_back();
    throw wrong_words(fmt::format("the words that {} takes", name_of(app)), found,
                      fmt::format("{} --help lists them", name_of(app)));
  }
}

InputWords input_words(std::vector<std::string> const& words) {
  InputWords out;
  for (auto const& word : words)
    (word.find('=') == std::string::npos && out.input.empty() ? out.input : out.overrides.emplace_back()) = word;
  return out;
}

void write_file(std::string const& path, std::string const& content, std::string const& where) {
  if (path == "/dev/stdout") {  // a file behind it has the lines of the command too, at the place of this stream
    std::cout << content << std::flush;
    return;
  }
  if (is_replaced(path)) {
    std::error_code ignored;
    // A link stays one, to the file that is replaced.
    auto const real = fs::is_symlink(path, ignored) ? fs::canonical(path, ignored) : fs::path(path);
    try {
      io::write_text_atomically(real.string(), content);
    } catch (base::Error const& e) {
      refuse_to_write(path, e.text().found, where);
    }
    return;
  }
  errno = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), &std::fclose);
  bool const written = file && std::fwrite(content.data(), 1, content.size(), file.get()) == content.size() &&
                       std::fflush(file.get()) == 0;
  if (!written) refuse_to_write(path, std::generic_category().message(errno), where);
}

void require_writable(std::string const& path, std::string const& where) {
  std::error_code ignored;
  auto const kind = fs::status(path, ignored).type();
  if (kind == fs::file_type::directory) refuse_to_write(path, std::generic_category().message(EISDIR), where);
  // A new file is made beside the old one, so that the folder must be writable, whatever the old one is.
  auto const folder = fs::weakly_canonical(fs::absolute(path, ignored), ignored).parent_path();
  bool const made = is_replaced(path) || kind == fs::file_type::not_found;
  errno = 0;
  bool const good = made ? ::access(folder.c_str(), W_OK | X_OK) == 0 : ::access(path.c_str(), W_OK) == 0;
  if (!good) refuse_to_write(path, std::generic_category().message(errno), where);
}

void require_no_input(std::string const& path, std::string const& where, std::vector<std::string> const& inputs) {
  for (auto const& input : inputs) {
    std::error_code missing;
    // Two names of one device, such as a terminal, may be read and written.
    if (path.empty() || input.empty() || !fs::is_regular_file(path, missing)) continue;
    if (!fs::equivalent(path, input, missing) || missing) continue;
    throw wrong_words(fmt::format("a file of its own for {}", where),
                      fmt::format("{} {}, which is read: it would be replaced", where, path), "name another file");
  }
}

std::optional<double> read_number(std::string_view word, double least, double most) {
  double value = 0.0;
  auto const* const end = word.data() + word.size();
  auto const [rest, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc{} || rest != end || !std::isfinite(value) || value < least || value > most) return {};
  return value;
}

std::optional<std::uint64_t> read_count(std::string_view word, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  auto const* const end = word.data() + word.size();
  auto const [rest, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc{} || rest != end || value < least || value > most) return {};
  return value;
}

CLI::Validator number_from(double least, double most) {
  return {[=](std::string& word) {
            return read_number(word, least, most) ? std::string()
                                                  : fmt::format("{} is no number from {:g} to {:g}", word, least, most);
          },
          fmt::format("{:g} to {:g}", least, most)};
}

CLI::Validator count_from(std::uint64_t least, std::uint64_t most) {
  return {[=](std::string& word) {
            return read_count(word, least, most)
                       ? std::string()
                       : fmt::format("{} is no whole number from {} to {}", word, least, most);
          },
          fmt::format("{} to {}", least, most)};
}

}  // namespace p3d::app
