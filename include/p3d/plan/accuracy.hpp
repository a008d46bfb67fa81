// SPDX-License-Identifier: Apache-2.0
#pragma once
// How good predictions are: errors against measurements, and whether the predictions choose well.
//
// Two questions are apart. The level: how far is a predicted time from the measured one. The choice: of several layouts
// of the same problem (model, batch, ranks, cluster), is the one that is predicted best also good when it is measured.
// A predictor may be good at one of them and bad at the other.

#include <span>
#include <string>
#include <vector>

namespace p3d::plan {

/// A measured number with its prediction. All numbers are positive.
struct Graded {
  std::string problem;  ///< equal for rows that differ in their layout alone
  double measured = 0;
  double predicted = 0;
  double low = 0, high = 0;  ///< the interval of the prediction
  double operations = 0;     ///< model and recomputed operations of a rank; 0: the row is no time
};

/// Errors of a group of rows, as parts of the measured numbers (0.05 is 5 %).
struct Accuracy {
  int rows = 0;
  double mean = 0;        ///< mean error (MAPE), each error being |predicted / measured - 1|
  double median = 0;      ///< median error
  double percentile = 0;  ///< 90th percentile of the errors
  double worst = 0;       ///< largest error
  double bias = 0;        ///< mean of predicted / measured - 1
  double within = 0;      ///< share of the rows with an error of at most 10 %
  double coverage = 0;    ///< share of the rows that their interval contains
};
Accuracy accuracy(std::span<Graded const> rows);

/// How well predictions order the layouts of one problem.
struct Choice {
  std::string problem;
  int layouts = 0;
  double tau = 0;     ///< Kendall's rank correlation (tau-b, with ties) of measured and predicted numbers, -1 to 1
  double regret = 0;  ///< measured time of the layout that is predicted best, over the best measured one, minus 1
  double regret_of_three = 0;  ///< regret of the best measured one among the three that are predicted best
};
/// A Choice for each problem with at least three layouts, in the order of their first rows.
std::vector<Choice> choices(std::span<Graded const> rows);

/// Kendall's tau-b of pairs; 0 where one side is constant. Time n^2.
double kendall_tau(std::span<double const> a, std::span<double const> b);

/// Mean errors of two predictors that know the measurements of the group, to be better than.
struct Baselines {
  /// MAPE of the median of the other rows of the same problem; of rows without such rows, of the group's other rows.
  double median = 0;
  /// MAPE of operations / rate, with the median rate of the group's rows; 0 where operations are not known.
  double operations = 0;
};
Baselines baselines(std::span<Graded const> rows);

}  // namespace p3d::plan
