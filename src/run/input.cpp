#include <p3d/run/input.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/run_plan.hpp>

#include <cstdio>

namespace p3d::run {

namespace {

/// What depends on the schedule is found when it is made; reported here, it is reported once.
bool can_be_planned(config::Config const& config) {
  try {
    engine::make_run_plan(config);
    return true;
  } catch (base::Error const& e) {
    if (e.code() != base::ExitCode::bad_input) throw;
    std::fputs((std::string("the input has 1 fault\n\n") + e.what() + "\n").c_str(), stderr);
    std::fflush(stderr);
    return false;
  }
}

}  // namespace

std::optional<config::Config> read_input_together(comm::Communicator& world, std::string const& path,
                                                  std::vector<std::string> const& overrides) {
  bool const root = world.rank() == 0;
  config::ParseResult result;
  std::string text;
  if (root) {
    result = config::parse_file(path, overrides, world.size());
    if (result.config && can_be_planned(*result.config)) {
      text = config::canonical_toml(*result.config);
    } else if (!result.config) {
      std::fputs(config::format(result.faults).c_str(), stderr);
      std::fflush(stderr);
    }
  }
  auto length = static_cast<std::int64_t>(text.size());
  world.broadcast(&length, 1, comm::Type::int64, 0).wait();
  if (length == 0) return {};
  text.resize(static_cast<std::size_t>(length));
  world.broadcast(text.data(), length, comm::Type::byte, 0).wait();

  // The others check again: a data file may be missing on their node.
  if (!root) {
    result = config::parse_text(text, "the resolved input", "/", {}, world.size());
    if (!result.config) base::error_here(config::format(result.faults));
  }
  std::int64_t good = result.config ? 1 : 0;
  world.all_reduce(&good, 1, comm::Type::int64, comm::Reduction::min).wait();
  return good == 1 ? result.config : std::nullopt;
}

}  // namespace p3d::run
