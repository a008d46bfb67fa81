// SPDX-License-Identifier: Apache-2.0
// The keys of [linalg]: which library computes GEMMs and attention.

#include "config/keys.hpp"
#include "config/section.hpp"

namespace p3d::config {

void add_linalg(std::vector<Key>& table) {
  Section<Linalg> s(table, "linalg", &Config::linalg);
  s.choice("host", &Linalg::host,
           "library of fp32 GEMMs on the host; auto: with run.deterministic oneDNN where p3d has it and the processor "
           "has AVX-512, otherwise for each shape the quicker one of a trial at the start");
  s.choice("attention", &Linalg::attention,
           "on GPUs: attention as GEMMs of blocks and a softmax between them, or as one kernel of a vendor's library "
           "(cuDNN); auto: the one kernel where the run has 16 bits and the library takes the model's shape and gives "
           "the same numbers in a trial at the start");
  s.flag("tf32", &Linalg::tf32,
         "on NVIDIA's GPUs: in run.precision = \"fp32\", GEMMs on tensor cores, with factors rounded to 10 bits of "
         "mantissa and sums in fp32: quicker, and no longer fp32's numbers; other machines do without");
}

}  // namespace p3d::config
