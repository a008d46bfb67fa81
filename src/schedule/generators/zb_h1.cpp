// SPDX-License-Identifier: Apache-2.0
// ZB-H1 (arXiv 2401.10241, figure 2); see zero_bubble.hpp.

#include "zero_bubble.hpp"

namespace p3d::schedule {

extern Generator const generator_zb_h1;
Generator const generator_zb_h1{
    .name = "zb_h1",
    .help = "1f1b with split backward; a third of its bubble when f = i = w, every rank keeps p microbatches",
    .make = [](Shape const& shape) { return zero_bubble(shape, 1); }};

}  // namespace p3d::schedule
