// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes, which make a complete program of a generator's compute actions. There is one list of them, in the order
// in which they run (passes.cpp); `p3d schedule show --passes` prints it. A pass is a row of that list: its name, what
// it does, when it runs, and a function that schedule.hpp, vocabulary.hpp, offload.hpp or weights.hpp describes.
//
// Example: apply_passes(generate("1f1b", {4, 8}), {}) runs "slots", "messages" and "reductions"; with .resident = 2 it
// runs "offload" behind them.

#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::schedule {

/// The arguments of divide_vocabulary().
struct VocabularyDivision {
  VocabularyTimes times;
  VocabularyOrder order = VocabularyOrder::forwards_first;
  bool tied = false;
};

/// How the program of a run differs from the shortest one. By default only what every program needs is added.
struct PassOptions {
  bool is_complete = false;  ///< the program has slots, messages and reductions: only later passes run
  std::optional<VocabularyDivision> vocabulary = {};  ///< the vocabulary is divided over the ranks
  bool exchange_pairs = false;                        ///< a forward goes before the backward beside it
  int weight_deferral_limit = 0;                      ///< weight parts that wait on the last stage; 0: none
  std::vector<int> parts = {};                        ///< stages that each stage is cut into; empty: none is cut
  bool tied = false;                                  ///< Program::tied of the cut stages
  int receives_ahead = 1;                             ///< argument of add_messages()
  int slot_lookahead = 0;                             ///< argument of assign_slots()
  bool close_pairs = false;                           ///< forwards and backwards interleave
  int workers = 1;                                    ///< argument of add_reductions()
  int resident = 0;                                   ///< microbatches of a stage that remain in slots; 0: all
  std::optional<Sharding> weights = {};               ///< weights come and go
  Execution execution = {};                           ///< the program will run so
};

/// Facts about a program that one pass finds and a later one reads, too.
struct PassNotes;

/// A row of the list of passes.
struct ProgramPass {
  std::string_view name;
  std::string_view description;  ///< one line
  bool (*runs)(PassOptions const& options);
  void (*run)(Program& program, PassOptions const& options, PassNotes& notes);
};

/// All passes, in their order.
std::span<ProgramPass const> passes();
/// The list as a table, a line for each pass.
std::string passes_text();
/// Runs every pass that the options ask for.
Program apply_passes(Program program, PassOptions const& options);

}  // namespace p3d::schedule
