# SPDX-License-Identifier: Apache-2.0
# Finds Kokkos and Kokkos-Kernels from 3.4 to 5.x and makes the targets p3d_kokkos and p3d_kokkoskernels of them.
# Used by p3d's own build and, installed beside p3dConfig.cmake, by whoever links p3d.
#
# Debian and Ubuntu package 3.4.1 out of Trilinos 13. Its config differs from a plain Kokkos: the libraries are targets
# trilinos_*, the include folder comes right in a variable only (its Kokkos::kokkos names a folder that does not exist),
# and it forces CMAKE_CXX_EXTENSIONS into the cache with a warning. In Trilinos 16 and 17 Kokkos is a plain one;
# Kokkos-Kernels is the target KokkosKernels::all_libs there, and trilinos_kokkoskernels one that warns. All of that is
# dealt with here and nowhere else. tests/install/kokkos_test.py has a likeness of each.

# A value that is set and off keeps Kokkos from warning and from touching the cache; the caller's own comes back after.
if(DEFINED CMAKE_CXX_EXTENSIONS)
  set(_p3d_extensions "${CMAKE_CXX_EXTENSIONS}")
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
find_package(Kokkos QUIET)
if(Kokkos_FOUND)
  find_package(KokkosKernels QUIET)
endif()
if(DEFINED _p3d_extensions)
  set(CMAKE_CXX_EXTENSIONS "${_p3d_extensions}")
  unset(_p3d_extensions)
else()
  unset(CMAKE_CXX_EXTENSIONS)
endif()

include("${CMAKE_CURRENT_LIST_DIR}/P3dGpu.cmake")

set(P3D_KOKKOS_VERSION "")
set(P3D_KOKKOS_NOTE "")
if(Kokkos_FOUND)
  set(P3D_KOKKOS_VERSION "${Kokkos_VERSION}")
  string(REPLACE ";" ", " P3D_KOKKOS_BACKENDS "${Kokkos_DEVICES}")
  set(P3D_KOKKOS_NOTE " on ${P3D_KOKKOS_BACKENDS}")
  if(KokkosKernels_FOUND AND NOT TARGET Kokkos::kokkoskernels)
    string(APPEND P3D_KOKKOS_NOTE " (from Trilinos)")
  endif()
  if(NOT TARGET p3d_kokkos)
    add_library(p3d_kokkos INTERFACE IMPORTED GLOBAL)
    if(TARGET trilinos_kokkoscore)
      target_link_libraries(p3d_kokkos INTERFACE ${Kokkos_LIBRARIES})
      target_include_directories(p3d_kokkos INTERFACE ${Kokkos_INCLUDE_DIRS})
    else()
      target_link_libraries(p3d_kokkos INTERFACE Kokkos::kokkos)
    endif()
  endif()
endif()

if(KokkosKernels_FOUND)
  set(P3D_KOKKOSKERNELS_VERSION "${KokkosKernels_VERSION}")
  if(NOT P3D_KOKKOSKERNELS_VERSION)
    set(P3D_KOKKOSKERNELS_VERSION "${P3D_KOKKOS_VERSION}")  # Trilinos gives no version; the two are released together
  endif()
  if(NOT TARGET p3d_kokkoskernels)
    add_library(p3d_kokkoskernels INTERFACE IMPORTED GLOBAL)
    if(TARGET Kokkos::kokkoskernels)
      target_link_libraries(p3d_kokkoskernels INTERFACE Kokkos::kokkoskernels p3d_kokkos)
    elseif(TARGET KokkosKernels::all_libs)
      target_link_libraries(p3d_kokkoskernels INTERFACE KokkosKernels::all_libs p3d_kokkos)
    else()
      target_link_libraries(p3d_kokkoskernels INTERFACE trilinos_kokkoskernels p3d_kokkos)
      target_include_directories(p3d_kokkoskernels INTERFACE ${KokkosKernels_INCLUDE_DIRS})
    endif()
  endif()
endif()
