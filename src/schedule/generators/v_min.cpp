// SPDX-License-Identifier: Apache-2.0
// V-Min (arXiv 2405.15362, section 3 and figure 4).

#include "../building_block.hpp"

namespace p3d::schedule {

extern Generator const generator_v_min;
Generator const generator_v_min{
    .name = "v_min",
    .help = "two stages per rank in a V, split backward; a third of the memory of 1f1b, about two thirds of its bubble",
    .stages_per_rank = 2,
    .make = [](Shape const& shape) { return v_program(shape, {.down = 1, .up = 1}); }};

}  // namespace p3d::schedule
