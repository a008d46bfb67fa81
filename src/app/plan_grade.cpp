// SPDX-License-Identifier: Apache-2.0
// Grades predictions against measured runs: a table of errors by group, one of how well layouts are chosen, and the
// rows with their predictions as CSV. A row that cannot be predicted is an error, so that no table is better than its
// rows.
#include "plan_grade.hpp"

#include "words.hpp"

#include <p3d/base/csv.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/config/cluster.hpp>
#include <p3d/plan/accuracy.hpp>
#include <p3d/plan/measured_rows.hpp>
#include <p3d/plan/step_time.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>

namespace p3d::app {
namespace {

constexpr std::int64_t most_file_bytes = std::int64_t{64} << 20;

/// The clusters of a folder, each read when a row first names it: NAME is the file NAME.toml.
class Clusters {
public:
  explicit Clusters(std::string folder) : folder_(std::move(folder)) {}
  config::Cluster const& get(std::string const& name, std::string const& where) {
    if (auto const found = known_.find(name); found != known_.end()) return found->second;
    if (name.empty() || name.find('/') != std::string::npos)
      base::refuse("the name of a cluster", fmt::format("\"{}\"", name), where,
                   fmt::format("NAME stands for the file {}/NAME.toml", folder_));
    auto const path = folder_ + "/" + name + ".toml";
    auto result = config::parse_cluster_file(path);
    if (!result.cluster) throw config::InputError(result.errors);
    return known_.emplace(name, std::move(*result.cluster)).first->second;
  }

private:
  std::string folder_;
  std::map<std::string, config::Cluster> known_;
};

std::string percent(double part) { return fmt::format("{:.1f}", 100 * part); }

std::string accuracy_line(std::string const& group, std::vector<plan::Graded> const& rows, bool bytes) {
  auto const a = plan::accuracy(rows);
  auto const b = plan::baselines(rows);
  return fmt::format("{:<28} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>7} {:>7}\n", group, a.rows,
                     percent(a.mean), percent(a.median), percent(a.percentile), percent(a.worst), percent(a.bias),
                     percent(a.within), percent(a.coverage), percent(b.median), bytes ? "-" : percent(b.operations));
}

/// A row with its prediction, as its line of the CSV file has them.
std::string csv_line(plan::MeasuredRow const& row, plan::Graded const& g) {
  auto cells = row.cells;
  for (double x : {g.predicted, g.low, g.high, g.predicted / g.measured - 1}) cells.push_back(fmt::format("{:.6g}", x));
  return base::csv_row(cells);
}

}  // namespace

int grade(std::string const& path, std::string const& clusters, std::string const& csv, bool verbose) {
  auto const rows =
      plan::read_measured_rows(base::read_text_file(path, "a table of measured runs", path, most_file_bytes), path);
  Clusters known(clusters);
  std::vector<std::string> order;
  std::map<std::string, std::vector<plan::Graded>> groups;
  auto header = rows.header;
  for (char const* column : {"predicted", "low", "high", "error"}) header.emplace_back(column);
  std::string table = base::csv_row(header);
  bool bytes = false;
  for (auto const& row : rows.rows) {
    auto const where = fmt::format("{}, line {}", path, row.line);
    auto const& cluster = known.get(row.cluster, where);
    auto const& kernels = plan::kernels_of(row.kernels, where, cluster.kernels);
    plan::Graded g{.problem = plan::problem_of(row), .measured = row.measured};
    try {
      if (row.bytes) {
        g.predicted = plan::predicted_bytes(row.config, kernels);
        g.low = g.predicted * 0.97;
        g.high = g.predicted * 1.03;
        bytes = true;
      } else {
        auto const time = plan::predict_step(row.config, cluster, kernels);
        g.predicted = time.seconds();
        g.low = time.low;
        g.high = time.high;
        g.operations = plan::operations_of_rank(row.config);
      }
    } catch (base::Error const& e) {
      base::refuse(e.text().expected, e.text().found, fmt::format("{} ({})", where, e.text().where), e.text().fix);
    }
    table += csv_line(row, g);
    auto const group = row.split.empty() ? row.group : row.group + ", " + row.split;
    if (!groups.contains(group)) order.push_back(group);
    groups[group].push_back(std::move(g));
  }

  std::string text =
      fmt::format("{} of {}\n\n", base::counted(static_cast<std::int64_t>(rows.rows.size()), "row"), path);
  text += fmt::format("{:<28} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>7} {:>7}\n", "group", "rows", "mean",
                      "median", "90th", "worst", "bias", "in 10 %", "interval", "medians", "FLOPs");
  for (auto const& group : order) text += accuracy_line(group, groups[group], bytes);
  text +=
      "\nErrors in % of the measured numbers. in 10 %: share of the rows with an error of at most 10 %; interval: "
      "share that lies in\nthe predicted interval, which means to hold 90 %. Two predictors to be better than, by "
      "their mean error: medians: the median of\nthe problem's other rows; FLOPs: the operations over one rate, the "
      "group's median.\n";
  text += fmt::format("\n{:<28} {:>9} {:>8} {:>8} {:>8} {:>9} {:>9}\n", "choice of layouts", "problems", "tau", "least",
                      "regret", "worst", "of three");
  std::string each;
  for (auto const& group : order) {
    auto const all = plan::choices(groups[group]);
    if (all.empty()) continue;
    double tau = 0, least = 1, regret = 0, worst = 0, three = 0;
    for (auto const& c : all) {
      tau += c.tau / static_cast<double>(all.size());
      least = std::min(least, c.tau);
      regret += c.regret / static_cast<double>(all.size());
      worst = std::max(worst, c.regret);
      three = std::max(three, c.regret_of_three);
      each += fmt::format("  {:<90} {:>3} {:>6.2f} {:>6} {:>6}\n", c.problem, c.layouts, c.tau, percent(c.regret),
                          percent(c.regret_of_three));
    }
    text += fmt::format("{:<28} {:>9} {:>8.2f} {:>8.2f} {:>8} {:>9} {:>9}\n", group, all.size(), tau, least,
                        percent(regret), percent(worst), percent(three));
  }
  text +=
      "\nA problem has rows that differ in their layout alone. tau: Kendall's rank correlation, mean and least of the "
      "problems. regret: what\nthe layout that is predicted best takes more than the best one, in % (mean, worst); of "
      "three: the best of the three predicted best.\n";
  if (verbose) text += "\nproblem, layouts, tau, regret, regret of three\n" + each;
  std::cout << text << std::flush;
  if (!csv.empty()) write_file(csv, table, "--csv");
  return 0;
}

}  // namespace p3d::app
