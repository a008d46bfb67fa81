// SPDX-License-Identifier: Apache-2.0
// Writes the buffers of a rank as a table for people (p3d --check --verbose).
#include <p3d/plan/run_plan.hpp>

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::plan {

namespace {

using layout::BufferClass;

/// The lifetime of a buffer in words: it is kept unless memory.recompute has the word in quotes.
std::string words(BufferClass of_class, bool offloads) {
  std::string const kept = offloads ? "offloaded" : "kept";
  switch (of_class) {
    case BufferClass::norm: return kept + " unless \"norm\"";
    case BufferClass::attention:
    case BufferClass::attention_sums: return kept + " unless \"attention\"";
    case BufferClass::activation: return kept + " unless \"activation\"";
    case BufferClass::layer:
    case BufferClass::statistics:
    case BufferClass::branch_sum: return kept + " unless \"full\"";
    case BufferClass::stage: return kept;
    case BufferClass::message:
    case BufferClass::vocabulary: return "message";
    case BufferClass::scratch: return "scratch";
  }
  return "";
}

}  // namespace

std::string buffer_table(config::Config const& c, RunPlan const& plan, Platform const& platform) {
  auto const& memory = plan.memory;
  auto const top = std::max_element(memory.begin(), memory.end(),
                                    [](auto const& a, auto const& b) { return a.total() < b.total(); });
  int const rank = static_cast<int>(top - memory.begin());
  auto const bytes = activation_memory(c, plan, rank, platform);
  constexpr char const* row = "{:<28} {:>11} {:>11}  {:<29} {}\n";
  auto const human = [](std::int64_t n) {
    return n == 0 ? std::string("-") : base::human_bytes(static_cast<double>(n));
  };
  auto text = fmt::format("Memory by buffer, of pipeline coordinate {}:\n", rank);
  text += fmt::format(row, "buffer", "activations", "workspace", "class (memory.recompute)", "content");
  for (std::size_t b = 0; b < layout::num_buffers; ++b) {
    auto const saved = bytes.activations.of[b], scratch = bytes.workspace.of[b];
    if (saved == 0 && scratch == 0) continue;
    auto const& buffer = layout::buffer_table[b];
    text += fmt::format(row, buffer.name, human(saved), human(scratch), words(buffer.of_class, bytes.offloaded > 0),
                        buffer.text);
  }
  text += fmt::format(row, "sum", human(top->activations), human(top->workspace), "", "");
  while (text.find(" \n") != std::string::npos) text.erase(text.find(" \n"), 1);
  return text;
}

}  // namespace p3d::plan
