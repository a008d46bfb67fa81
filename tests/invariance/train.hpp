// SPDX-License-Identifier: Apache-2.0
#pragma once
// Short runs, and how far two of them are apart.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

#include <support/temp_dir.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace p3d::test {

struct RunResult {
  std::vector<double> losses;  ///< of each step, with model.mtp followed by that of its blocks
  std::vector<double> norms;
  std::map<std::string, std::vector<double>> gradients;  ///< of the first step
  std::map<std::string, std::vector<double>> values;     ///< after the last step, if asked for
  std::vector<std::vector<std::int64_t>> expert_tokens;  ///< of the last step, by layer with experts
};

/// Trains `steps` steps, and checks that activations fill what was planned for them. Also::evaluation: one more loss,
/// of an evaluation batch.
enum class Also { nothing, evaluation, values };
RunResult train(config::Config const& config, comm::Communicator const& comm, int steps, Also also = Also::nothing);

/// A folder for all ranks, which are on one node: rank 0 makes it, and removes it when all are done. Collective.
class SharedFolder {
public:
  explicit SharedFolder(comm::Communicator& world);
  ~SharedFolder();
  SharedFolder(SharedFolder const&) = delete;
  SharedFolder& operator=(SharedFolder const&) = delete;
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

private:
  comm::Communicator* world_;
  std::optional<TempDir> made_;
  std::string path_;
};

/// Largest relative deviations of losses, and of gradients: relative to the largest element of the tensor, or to a
/// thousandth of the largest of all.
std::pair<double, double> deviations(RunResult const& a, RunResult const& b);

/// What the programs of such tests are asked for.
struct Options {
  bool full = false, sabotage = false;
  std::string precision = "fp64", dropout = "0.0", only;
  bool wide() const { return precision == "fp64"; }
};

/// Counts runs that were compared, and prints a line for each.
class Tally {
public:
  /// fp64: losses within 1e-9, gradients within 1e-12 (deviations()); fp32: 2e-4 and 2e-3.
  Tally(int ranks, Options const& options);
  Tally(int ranks, double loss, double gradient) : ranks_(ranks), loss_bound_(loss), gradient_bound_(gradient) {}
  void compare(RunResult const& reference, RunResult const& got, std::string const& what);
  /// Prints the sums; 0, or 1 when a comparison failed. There must have been one.
  int finish() const;

private:
  int ranks_, runs_ = 0, failures_ = 0;
  double loss_bound_, gradient_bound_, loss_ = 0.0, gradient_ = 0.0;
};

/// What such a program does around `run`, which returns the exit code. `accepted`: "--full", "--sabotage",
/// "--precision", "--dropout" and "--only" as far as it takes them; with anything else it prints its usage.
int run_main(int argc, char** argv, std::vector<std::string_view> const& accepted, int (*run)(Options const& options));

}  // namespace p3d::test
