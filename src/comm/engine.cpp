// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <vector>

#include "late_start.hpp"

namespace p3d::comm::detail {

namespace {
/// Engines with unfinished work, which advance_engines() moves.
std::vector<Engine*> busy;
}  // namespace

Engine::~Engine() { std::erase(busy, this); }

void Engine::start(Work& work) {
  P3D_REQUIRE(!stopped_, "nothing follows on a communicator one of whose collectives was given up");
  enqueue(work);
  advance();
  if (!idle() && std::find(busy.begin(), busy.end(), this) == busy.end()) busy.push_back(this);
}

void Engine::make_wait(void* /*stream*/, Work const& /*work*/) {
  P3D_REQUIRE(false, "only an engine with a stream of its own is waited for by streams");
}

void Engine::stop() {
  stopped_ = true;
  std::erase(busy, this);
}

bool advance_engines() {
  bool moved = begin_late_operations();
  if (busy.empty()) return moved;
  bool any_idle = false;
  for (std::size_t i = 0; i < busy.size(); ++i) {
    moved = busy[i]->advance() || moved;
    any_idle = any_idle || busy[i]->idle();
  }
  if (any_idle) std::erase_if(busy, [](Engine const* engine) { return engine->idle(); });
  return moved;
}

bool engines_are_woken() {
  return std::all_of(busy.begin(), busy.end(), [](Engine const* engine) { return engine->is_woken(); });
}

bool engines_send_messages() {
  return std::any_of(busy.begin(), busy.end(), [](Engine const* engine) { return engine->sends_messages(); });
}

}  // namespace p3d::comm::detail
