// SPDX-License-Identifier: Apache-2.0
#include <p3d/config/allowed.hpp>

#include "config/rules.hpp"

namespace p3d::config {

bool allowed(Config const& config) {
  // An input without entries: errors name no places, and nobody reads them.
  Input const nothing_written;
  Sources const sources(nothing_written);
  KeyErrors errors;
  Check const check{config, sources, config.num_ranks(), errors};
  check_model(check);
  check_size(check);
  check_mesh(check, Purpose::training);
  check_moe(check);
  check_context(check);
  check_parallel(check);
  check_pipeline(check);
  check_precision(check);
  check_memory(check);
  return errors.size() == 0;
}

}  // namespace p3d::config
