// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a TOML file and command-line overrides to a Config, or to the complete list of errors. Example: the file has
// "[model] hidden = 100" and the command line model.heads=8; the one error names both places, and the fix says that
// hidden may be 96 or 104.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// One error of an input.
struct KeyError {
  std::string key;    ///< "parallel.tp", or "" for the file as a whole
  std::string where;  ///< place: "input.toml:12:3", "command line: parallel.tp=4"
  std::string expected;
  std::string found;
  std::string fix;
};

/// Either a configuration (errors empty) or every error that could be found.
struct ParseResult {
  std::optional<Config> config;
  std::vector<KeyError> errors;
};

/// The use that the input is read for. A layout is its mesh alone: rules of the model, the batch and the files are not
/// checked, and axes are allowed that p3d cannot train with yet.
enum class Purpose { training, layout };

/// The keys that parallel.layout = "auto" may choose: sizes of axes, microbatch, schedule, recomputation, sharding.
std::vector<std::string> const& layout_keys();

/// Reads `path` ("": overrides alone), applies `overrides`, and checks every rule within and between keys. Never throws
/// for a bad input.
///
/// An override is "section.key=value", its value in TOML syntax; a bare word counts as a string; of two for the same
/// key the later one counts. The order of precedence is default, preset, file, override. `num_ranks` is the number of
/// ranks of the run or, with 0, unknown: then dp defaults to 1 and the product is not checked. Paths come back
/// absolute: data.path is resolved against the input file's folder (in an override: the current directory),
/// run.output_dir against the current directory.
ParseResult parse_file(std::string const& path, std::vector<std::string> const& overrides, int num_ranks,
                       Purpose purpose = Purpose::training);

/// Does what parse_file() does for a text in memory. `name` stands for the file in messages, and relative paths are
/// resolved against `folder`.
ParseResult parse_text(std::string_view text, std::string const& name, std::string const& folder,
                       std::vector<std::string> const& overrides, int num_ranks, Purpose purpose = Purpose::training);

/// Returns true when the rules between keys accept a configuration that a program changed after it was read, as they
/// would if an input had all of its values. Rules about the data and the checkpoint are left out: no file is opened.
/// The choice that memory.limit makes asks for every candidate.
bool allowed(Config const& config);

/// All errors as one text for people: numbered, each with expected / found / where / fix.
std::string format(std::vector<KeyError> const& errors);

/// The errors as an exception (bad_input): what() has all of them, text() the first.
class InputError : public base::Error {
public:
  explicit InputError(std::vector<KeyError> const& errors);
  char const* what() const noexcept override { return all_.c_str(); }

private:
  std::string all_;
};

/// The complete input as TOML, every key written, in a fixed order with fixed formatting. Parsing it gives the same
/// Config, and two equal Configs give the same bytes. Paths are absolute.
std::string canonical_toml(Config const& config);

/// A 64-bit hash of canonical_toml() (xxHash64, seed 0).
std::uint64_t hash(Config const& config);

/// The names of the presets (of [model] only).
std::vector<std::string> preset_names();
/// A known key with its one-line help, for messages and `p3d --help-input`.
struct KeyHelp {
  std::string key;   ///< "model.hidden"
  std::string type;  ///< "integer >= 1", "string: gelu | swiglu", ...
  std::string help;
  std::string default_text;  ///< "100", "runs/<run.name>", ...
};
/// All known keys, in the order of canonical_toml().
std::vector<KeyHelp> key_help();

}  // namespace p3d::config
