# Kokkos and Kokkos-Kernels from 3.4 to 5.x as p3d::kokkos and p3d::kokkoskernels.
#
# Debian and Ubuntu package 3.4.1 out of Trilinos: its config defines targets trilinos_* instead of Kokkos::*, and the
# include folder only in a variable. That difference is dealt with here and nowhere else.

find_package(Kokkos QUIET)
if(Kokkos_FOUND)
  find_package(KokkosKernels QUIET)
endif()

# Trilinos' config asks for the system's C++ extensions setting and forces it into the cache; ours stands.
set(CMAKE_CXX_EXTENSIONS OFF)

if(Kokkos_FOUND)
  add_library(p3d_kokkos INTERFACE)
  if(TARGET Kokkos::kokkos)
    target_link_libraries(p3d_kokkos INTERFACE Kokkos::kokkos)
    set(P3D_KOKKOS_FLAVOUR "")
  else()
    target_link_libraries(p3d_kokkos INTERFACE ${Kokkos_LIBRARIES})
    target_include_directories(p3d_kokkos SYSTEM INTERFACE ${Kokkos_INCLUDE_DIRS})
    set(P3D_KOKKOS_FLAVOUR " (Trilinos)")
  endif()
  set(P3D_KOKKOS_VERSION "${Kokkos_VERSION}${P3D_KOKKOS_FLAVOUR}")
  set(P3D_KOKKOS_BACKENDS "${Kokkos_DEVICES}")
  p3d_note_found(Kokkos "${P3D_KOKKOS_VERSION}, ${Kokkos_DEVICES}" "kernels on every backend")
else()
  p3d_note_missing(Kokkos "kernels on every backend" "libtrilinos-kokkos-dev" kokkos)
endif()

if(KokkosKernels_FOUND)
  add_library(p3d_kokkoskernels INTERFACE)
  if(TARGET Kokkos::kokkoskernels)
    target_link_libraries(p3d_kokkoskernels INTERFACE Kokkos::kokkoskernels p3d_kokkos)
  else()
    target_link_libraries(p3d_kokkoskernels INTERFACE trilinos_kokkoskernels p3d_kokkos)
    target_include_directories(p3d_kokkoskernels SYSTEM INTERFACE ${KokkosKernels_INCLUDE_DIRS})
  endif()
  p3d_note_found(Kokkos-Kernels "${KokkosKernels_VERSION}" "matrix products")
else()
  p3d_note_missing(Kokkos-Kernels "matrix products" "libtrilinos-kokkos-kernels-dev" kokkos-kernels)
endif()
