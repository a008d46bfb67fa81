// SPDX-License-Identifier: Apache-2.0
// V-Half (arXiv 2405.15362, section 3 and figure 4).

#include "../building_block.hpp"

namespace p3d::schedule {

extern Generator const generator_v_half;
Generator const generator_v_half{
    .name = "v_half",
    .help = "two stages per rank in a V, split backward; half the memory of 1f1b, about half of its bubble",
    .stages_per_rank = 2,
    .make = [](Shape const& shape) { return v_program(shape, {.down = 2, .up = 1}); }};

}  // namespace p3d::schedule
