// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d plan grade.

#include <string>

namespace p3d::app {

/// Predicts every row of the table `path` with the clusters of a folder and prints how far the predictions are off. A
/// `csv` that is not empty is written: the rows with their predictions. Throws base::Error for bad rows and files.
int grade(std::string const& path, std::string const& clusters, std::string const& csv, bool verbose);

}  // namespace p3d::app
