// SPDX-License-Identifier: Apache-2.0
#include <support/kokkos_main.hpp>
