#include <support/kokkos_main.hpp>
