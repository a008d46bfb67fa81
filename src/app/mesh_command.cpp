// SPDX-License-Identifier: Apache-2.0
// Prints the ranks of a layout as a table, one rank with its groups, or CSV. All of it follows from layout::RankGrid,
// so it works for any number of ranks on one process. Example: "p3d mesh input.toml --ranks 64 --rank 5".
#include "mesh_command.hpp"

#include "command_line.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/layout/communicators.hpp>
#include <p3d/layout/named_groups.hpp>
#include <p3d/report/describe.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <span>

namespace p3d::app {
namespace {

using layout::Axis;
using layout::AxisSet;

constexpr char const* mesh_footer =
    "Examples:\n"
    "  p3d mesh inputs/quickstart.toml --ranks 8\n"
    "  p3d mesh inputs/llama3-8b.toml --ranks 64 --rank 37\n"
    "  p3d mesh input.toml parallel.tp=4 parallel.ep=8 --ranks 1024 --csv > mesh.csv\n"
    "\n"
    "A group of an axis: the ranks that differ only along it. A rank's number in it is its coordinate along the axis.\n"
    "The axes of experts divide the ranks of a pipeline stage once more.";

/// The rank that holds the stage before (step -1) or behind (step 1), or -1 at the ends of the pipeline.
int neighbour(layout::RankGrid const& grid, int rank, int step) {
  int const place = grid.place(Axis::pp, rank) + step;
  return place < 0 || place >= grid.sizes().pp ? -1 : grid.member(Axis::pp, rank, place);
}

/// The name of a group as messages about its communicator have it, "dp+tp": axes in alphabetical order.
std::string name_of(AxisSet axes) {
  std::vector<std::string> names;
  for (auto a : axes.list()) names.emplace_back(layout::name(a));
  std::sort(names.begin(), names.end());
  return base::join(names, "+");
}

/// The number of a rank, or a word where there is none.
std::string none_or(int rank, char const* none) { return rank < 0 ? none : fmt::format("{}", rank); }

/// The lines with the sizes of all axes.
std::string heading(layout::RankGrid const& grid) {
  auto const sizes = [&](std::vector<Axis> const& axes) {
    std::string text;
    for (auto a : axes) text += fmt::format(" {}={}", layout::name(a), grid.sizes()[a]);
    return text;
  };
  return fmt::format("Mesh: {}, order{} (neighbouring ranks first)\nExperts, on the ranks of each stage:{}\n",
                     base::counted(grid.num_ranks(), "rank"), sizes(grid.order()),
                     sizes(config::stage_order(config::AxisKind::expert, grid.order())));
}

/// The ranks of a group, "4 5"; for more than 16 ranks the first, the next and the last.
std::string members(layout::RankGrid const& grid, AxisSet axes, int rank) {
  int const size = grid.group_size(axes);
  if (size > 16)
    return fmt::format("{} {} ... {}", grid.member(axes, rank, 0), grid.member(axes, rank, 1),
                       grid.member(axes, rank, size - 1));
  return fmt::format("{}", fmt::join(grid.group(axes, rank), " "));
}

/// One line about a rank's group.
std::string group_row(std::string const& name, layout::RankGrid const& grid, AxisSet axes, int rank) {
  int const size = grid.group_size(axes);
  return fmt::format("  {:<10} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n", name, size, grid.number_of_group(axes, rank),
                     grid.place(axes, rank), grid.member(axes, rank, 0), grid.member(axes, rank, size - 1),
                     members(grid, axes, rank));
}

/// Prints one rank: its groups along each axis, those that training uses, and its neighbours in the pipeline.
void print_rank(config::Config const& config, layout::RankGrid const& grid, int rank) {
  auto text = heading(grid) + fmt::format("\nRank {}\n", rank);
  auto const head =
      fmt::format("  {:<10} {:>8} {:>8} {:>8} {:>8} {:>8}  ranks\n", "axis", "size", "group", "place", "first", "last");
  text += head;
  for (auto a : layout::all_axes) text += group_row(layout::name(a), grid, a, rank);
  text += "Groups that training uses:\n";
  for (auto set : layout::communicator_sets(layout::make_param_table(config), grid.sizes(), config.memory.divides(),
                                            config.compresses()))
    if (!set.empty()) text += group_row(name_of(set), grid, set, rank);
  text += fmt::format("Pipeline rank {} of {}. Rank of the previous stage: {}, of the next stage: {}\n",
                      grid.place(Axis::pp, rank), grid.sizes().pp, none_or(neighbour(grid, rank, -1), "none"),
                      none_or(neighbour(grid, rank, 1), "none"));
  std::cout << text << std::flush;
}

/// Prints all groups and the coordinates of all ranks.
void print_all(layout::RankGrid const& grid) {
  auto text = heading(grid) + "\nGroups:\n";
  for (auto a : layout::all_axes) text += report::groups_line(grid, a);
  text += fmt::format("\nCoordinates, and the ranks that hold the previous and the next stage:\n{:>8}", "rank");
  for (auto a : layout::all_axes) text += fmt::format(" {:>6}", layout::name(a));
  text += fmt::format(" {:>9} {:>8}\n", "previous", "next");
  for (int r = 0; r < grid.num_ranks(); ++r) {
    auto const here = grid.coordinates(r);
    text += fmt::format("{:>8}", r);
    for (auto a : layout::all_axes) text += fmt::format(" {:>6}", here[a]);
    text += fmt::format(" {:>9} {:>8}\n", none_or(neighbour(grid, r, -1), "-"), none_or(neighbour(grid, r, 1), "-"));
  }
  std::cout << text << std::flush;
}

/// Prints CSV: a row for each rank from `first` to before `end`. A coordinate is the place in the group of that name.
/// Axes come first, then the other groups by the names of Megatron Core.
void print_csv(layout::RankGrid const& grid, int first, int end) {
  auto const& groups = layout::named_groups();
  std::string text = "rank";
  for (auto a : layout::all_axes) text += fmt::format(",{}", layout::name(a));
  for (auto a : layout::all_axes) text += fmt::format(",{0}_group,{0}_first,{0}_last", layout::name(a));
  text += ",previous_stage,next_stage";
  // named_groups() begins with the axes, whose columns are there already.
  auto const sets = std::span(groups).subspan(layout::all_axes.size());
  for (auto const& g : sets) text += fmt::format(",{0},{0}_group,{0}_first,{0}_last", g.name);
  text += '\n';
  auto const ends = [&](AxisSet axes, int r) {
    return fmt::format("{},{},{}", grid.number_of_group(axes, r), grid.member(axes, r, 0),
                       grid.member(axes, r, grid.group_size(axes) - 1));
  };
  for (int r = first; r < end; ++r) {
    auto const here = grid.coordinates(r);
    text += fmt::format("{}", r);
    for (auto a : layout::all_axes) text += fmt::format(",{}", here[a]);
    for (auto a : layout::all_axes) text += fmt::format(",{}", ends(a, r));
    text += fmt::format(",{},{}", none_or(neighbour(grid, r, -1), ""), none_or(neighbour(grid, r, 1), ""));
    for (auto const& g : sets) text += fmt::format(",{},{}", grid.place(g.axes, r), ends(g.axes, r));
    text += '\n';
  }
  std::cout << text << std::flush;
}

}  // namespace

int mesh_command(int argc, char** argv) {
  CLI::App app{"The ranks of a layout: coordinates along every axis, groups, and neighbours in the pipeline."};
  app.name("p3d mesh");
  app.footer(mesh_footer);
  std::vector<std::string> words;
  int ranks = 0, rank = -1;
  bool csv = false;
  app.add_option("input", words, "input.toml, then overrides of its keys: section.key=value")
      ->type_name("FILE [KEY=VALUE ...]");
  app.add_option("--ranks", ranks, "number of ranks to assume; without it, what the input says")
      ->check(count_from(1, most_ranks));
  app.add_option("--rank", rank, "only this rank, with its groups in full")->check(count_from(0, most_ranks));
  app.add_flag("--csv", csv, "one row for each rank, as CSV: all groups, with the names of Megatron Core too");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;

  auto const [input, overrides] = input_words(words);
  auto const result = config::parse_file(input, overrides, ranks, config::Purpose::layout);
  if (!result.config) {
    std::cerr << config::format(result.errors) << std::flush;
    return static_cast<int>(base::ExitCode::bad_input);
  }
  auto const& config = *result.config;
  layout::RankGrid const grid(config.parallel, layout::parse_order(config.parallel.order));
  if (rank >= grid.num_ranks())
    throw wrong_words(fmt::format("a rank from 0 to {}", grid.num_ranks() - 1), fmt::format("--rank {}", rank),
                      "choose one of these, or another number of --ranks");
  if (csv) {
    print_csv(grid, rank < 0 ? 0 : rank, rank < 0 ? grid.num_ranks() : rank + 1);
  } else if (rank < 0) {
    print_all(grid);
  } else {
    print_rank(config, grid, rank);
  }
  return 0;
}

}  // namespace p3d::app
