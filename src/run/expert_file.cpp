// SPDX-License-Identifier: Apache-2.0
#include "expert_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <sstream>

namespace p3d::run {

namespace {
constexpr char const* header = "step,layer,busiest,entropy,tokens of each expert\n";

/// True for a row such as "12,0,1.5000,0.9810,3 5", of so many experts.
bool is_row(std::string const& line, std::int64_t experts) {
  std::istringstream in(line);
  std::int64_t step = 0, layer = 0, tokens = 0;
  double busiest = 0.0, entropy = 0.0;
  char commas[4] = {};
  in >> step >> commas[0] >> layer >> commas[1] >> busiest >> commas[2] >> entropy >> commas[3];
  for (std::int64_t expert = 0; expert < experts; ++expert) in >> tokens;
  return !in.fail() && in.get() == std::istringstream::traits_type::eof() &&
         std::all_of(std::begin(commas), std::end(commas), [](char c) { return c == ','; });
}
}  // namespace

ExpertFile::ExpertFile(std::string const& output_dir, std::int64_t start, std::int64_t experts)
    : file_(output_dir + "/experts.csv", start, header,
            [experts](std::string const& line) { return is_row(line, experts); }) {}

void ExpertFile::write(std::int64_t step, std::vector<engine::ExpertLoad> const& layers) {
  std::string rows;
  for (auto const& l : layers)
    rows += fmt::format("{},{},{:.4f},{:.4f},{}\n", step, l.layer, l.busiest(), l.entropy(), fmt::join(l.tokens, " "));
  file_.append(rows);
}

std::string describe(std::vector<engine::ExpertLoad> const& layers) {
  if (layers.empty()) return "";
  auto const busiest = std::max_element(layers.begin(), layers.end(),
                                        [](auto const& a, auto const& b) { return a.busiest() < b.busiest(); });
  double least = 1.0, most = 0.0;
  for (auto const& l : layers) {
    least = std::min(least, l.entropy());
    most = std::max(most, l.entropy());
  }
  return fmt::format(
      "Experts: in the last step the busiest of a layer had {:.2f} of the mean number of tokens (layer {}); entropy "
      "{:.3f} to {:.3f} of even",
      busiest->busiest(), busiest->layer, least, most);
}

}  // namespace p3d::run
