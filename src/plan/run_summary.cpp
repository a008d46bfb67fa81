// SPDX-License-Identifier: Apache-2.0
// The summary of a run as JSON. Each member stands in one list (members, start_members, phase_members) with its key in
// the file; the list is walked with a Writer to make the file and with a Reader to read it back. Members that are
// missing in a file keep their defaults; numbers that do not fit are refused.
#include <p3d/plan/run_summary.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace p3d::plan {

namespace {

using Json = nlohmann::ordered_json;

constexpr int format_version = 1;
constexpr std::array<std::pair<RunState, char const*>, 4> states{{{RunState::running, "running"},
                                                                  {RunState::finished, "finished"},
                                                                  {RunState::stopped, "stopped"},
                                                                  {RunState::failed, "failed"}}};

/// The members of MemoryPrediction and their names in the file.
constexpr std::array<std::pair<char const*, std::int64_t MemoryPrediction::*>, 11> purposes{
    {{"parameters", &MemoryPrediction::params},
     {"gradients", &MemoryPrediction::grads},
     {"optimizer", &MemoryPrediction::optimizer},
     {"activations", &MemoryPrediction::activations},
     {"workspace", &MemoryPrediction::workspace},
     {"panels", &MemoryPrediction::panels},
     {"staging", &MemoryPrediction::staging},
     {"libraries", &MemoryPrediction::libraries},
     {"offloaded", &MemoryPrediction::offloaded},
     {"offloaded_activations", &MemoryPrediction::offloaded_activations},
     {"checkpoint_copy", &MemoryPrediction::checkpoint_copy}}};

/// The direction from a member to its value in the file.
struct Writer {
  Json& json;
  template <class T>
  void operator()(char const* key, T const& value) {
    json[key] = value;
  }
};
/// The direction from a value in the file to its member.
struct Reader {
  Json const& json;
  template <class T>
  void operator()(char const* key, T& value) {
    auto const at = json.find(key);
    if (at == json.end() || at->is_null()) return;
    if constexpr (std::is_integral_v<T>) {
      // Counts and bytes are limited to 2^59, so that they can be added up.
      constexpr auto most = std::min<std::int64_t>(std::numeric_limits<T>::max(), std::int64_t{1} << 59);
      bool const fits = at->is_number_unsigned() && at->template get<std::uint64_t>() <= std::uint64_t{most};
      if (!fits) throw std::out_of_range(fmt::format("\"{}\" that is no whole number from 0 to {}", key, most));
    }
    value = at->template get<T>();
  }
};

/// The members of a summary with their keys.
template <class Way, class Summary>
void members(Way&& way, Summary& s) {
  way("run", s.run);
  way("steps", s.steps);
  way("reason", s.reason);
  way("program", s.program);
  way("host", s.host);
  way("backend", s.backend);
  way("ranks_on_node", s.ranks_on_node);
  way("cores_on_node", s.cores_on_node);
  way("threads_per_rank", s.threads);
  way("layout", s.layout);
  way("schedule", s.schedule);
  way("precision", s.precision);
  way("stages", s.stages);
  way("microbatches", s.microbatches);
  way("parameters", s.parameters);
  way("tokens_per_step", s.tokens_per_step);
  way("model_flops_per_step", s.model_flops_per_step);
  way("recomputed_flops_per_step", s.recomputed_flops_per_step);
  way("data", s.data);
  way("training_windows", s.training_windows);
  way("validation_windows", s.validation_windows);
  way("ceiling_flops_per_rank", s.ceiling_flops);
  way("median_step_s", s.median_step_s);
  way("skipped_steps", s.skipped_steps);
  way("bottleneck", s.bottleneck);
  way("memory_predicted_bytes", s.memory_predicted);
  way("memory_before_bytes", s.memory_before);
  way("memory_found_bytes", s.memory_found);
}

/// The members of a start with their keys.
template <class Way, class Start>
void start_members(Way&& way, Start& s) {
  way("started", s.started);
  way("first_step", s.first_step);
  way("last_step", s.last_step);
  way("wall_s", s.wall_s);
  way("ranks", s.ranks);
}

/// The members of a phase with their keys.
template <class Way, class Phase>
void phase_members(Way&& way, Phase& p) {
  way("phase", p.name);
  way("min_s", p.min);
  way("mean_s", p.mean);
  way("max_s", p.max);
}

/// The state that a word in the file names.
RunState state_named(std::string const& word) {
  for (auto const& [state, name] : states) {
    if (word == name) return state;
  }
  throw std::out_of_range(fmt::format("the state \"{}\"", word.substr(0, 40)));
}

/// The elements of an array in the file, each read by `read`.
template <class T, class Read>
std::vector<T> elements(Json const& json, char const* key, Read&& read) {
  std::vector<T> out;
  auto const list = json.find(key);
  if (list == json.end()) return out;
  if (!list->is_array()) throw std::out_of_range(fmt::format("\"{}\" that is no array", key));
  for (auto const& element : *list) {
    if (!element.is_object()) throw std::out_of_range(fmt::format("an element of \"{}\" that is no object", key));
    read(element, out.emplace_back());
  }
  return out;
}

}  // namespace

char const* name(RunState state) { return states[static_cast<std::size_t>(state)].second; }

double RunSummary::mfu() const {
  double const most = median_step_s * ceiling_flops * ranks();
  return most > 0.0 ? model_flops_per_step / most : 0.0;
}

double RunSummary::hfu() const {
  return model_flops_per_step > 0.0 ? mfu() * (1.0 + recomputed_flops_per_step / model_flops_per_step) : 0.0;
}

std::string to_json(RunSummary const& s) {
  Json json;
  json["p3d_run_summary"] = format_version;
  json["state"] = name(s.state());
  json["exit_code"] = s.exit_code ? Json(*s.exit_code) : Json(nullptr);
  members(Writer{json}, s);
  json["mfu"] = s.mfu();
  json["hfu"] = s.hfu();
  json["memory_of_ranks_bytes"] = Json::array();
  for (auto const& m : s.memory_of_ranks) {
    auto& entry = json["memory_of_ranks_bytes"].emplace_back(Json::object());
    for (auto const& [key, member] : purposes) entry[key] = m.*member;
  }
  json["phases"] = Json::array();
  for (auto const& p : s.phases) phase_members(Writer{json["phases"].emplace_back(Json::object())}, p);
  json["starts"] = Json::array();
  for (auto const& start : s.starts) {
    auto& entry = json["starts"].emplace_back(Json::object());
    entry["state"] = name(start.state);
    start_members(Writer{entry}, start);
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunSummary parse_summary(std::string_view text, std::string const& where) {
  auto const refuse = [&](std::string found) {
    return base::Error({.expected = fmt::format("the summary of a run, as p3d writes it (version {})", format_version),
                        .found = std::move(found),
                        .where = where,
                        .fix = "delete it: the curves are in metrics.csv"},
                       base::ExitCode::bad_input);
  };
  try {
    auto const json = Json::parse(text);
    if (!json.is_object()) throw refuse("no JSON object");
    // The version stands first in the file. Another version is refused: its members may mean something else.
    if (auto const at = json.find("p3d_run_summary"); at == json.end() || *at != format_version)
      throw refuse(at == json.end() ? "no \"p3d_run_summary\"" : "another version");
    RunSummary s;
    members(Reader{json}, s);
    if (auto const at = json.find("exit_code"); at != json.end() && !at->is_null())
      Reader{json}("exit_code", s.exit_code.emplace());
    s.memory_of_ranks = elements<MemoryPrediction>(json, "memory_of_ranks_bytes", [](auto const& e, auto& m) {
      for (auto const& [key, member] : purposes) Reader{e}(key, m.*member);
    });
    s.phases = elements<PhaseSeconds>(json, "phases", [](auto const& e, auto& p) { phase_members(Reader{e}, p); });
    s.starts = elements<RunStart>(json, "starts", [](auto const& e, auto& start) {
      start_members(Reader{e}, start);
      start.state = state_named(e.value("state", std::string("running")));
    });
    return s;
  } catch (Json::exception const& e) {
    throw refuse(e.what());
  } catch (std::out_of_range const& e) {
    throw refuse(e.what());
  }
}

std::string utc(std::time_t time) {
  std::tm parts{};
  std::array<char, 64> text{};
  if (::gmtime_r(&time, &parts) == nullptr) return "";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace p3d::plan
