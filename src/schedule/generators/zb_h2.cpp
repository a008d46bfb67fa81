// SPDX-License-Identifier: Apache-2.0
// ZB-H2 (arXiv 2401.10241, figure 3); see zero_bubble.hpp.

#include "zero_bubble.hpp"

namespace p3d::schedule {

extern Generator const generator_zb_h2;
Generator const generator_zb_h2{
    .name = "zb_h2",
    .help = "zb_h1 with twice the memory (2p - 1 microbatches); no rank waits when f = i = w and m >= 2p - 1",
    .make = [](Shape const& shape) { return zero_bubble(shape, 2); }};

}  // namespace p3d::schedule
