// SPDX-License-Identifier: Apache-2.0
// The keys of [linalg].

#include "config/keys.hpp"
#include "config/section.hpp"

namespace p3d::config {

void add_linalg(std::vector<Key>& table) {
  Section<Linalg> s(table, "linalg", &Config::linalg);
  s.choice("host", &Linalg::host, {HostGemm::automatic, HostGemm::blas, HostGemm::onednn},
           "library of fp32 GEMMs on the host; auto: with run.deterministic oneDNN where p3d has it and the processor "
           "has AVX-512, otherwise for each shape the quicker one of a trial at the start");
}

}  // namespace p3d::config
