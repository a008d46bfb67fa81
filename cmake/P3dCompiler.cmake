# SPDX-License-Identifier: Apache-2.0
# Settings of the whole build that no consumer of p3d inherits: compiler cache, sanitizers, where the installed program
# looks for Kokkos.

# A project-wide habit: use ccache when it is there, unless the caller chose a launcher (or none:
# -DCMAKE_CXX_COMPILER_LAUNCHER=). Not in front of nvcc: what ccache compares is the host's half of a source, and the
# GPU's may differ from it (__CUDA_ARCH__).
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER AND NOT P3D_NVCC_VERSION)
  find_program(P3D_CCACHE ccache)
  mark_as_advanced(P3D_CCACHE)
  if(P3D_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${P3D_CCACHE})
  endif()
endif()

# __FILE__ is the path below the root: messages are the same wherever p3d was built, and so is what a compiler cache
# compares.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT P3D_NVCC_VERSION)
  add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
endif()

if(P3D_SANITIZE)
  add_compile_options(-fsanitize=${P3D_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${P3D_SANITIZE})
endif()

# CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out folders below the source tree, which is where scripts/kokkos-openmp.sh
# puts Kokkos.
if(Kokkos_DIR AND NOT TARGET trilinos_kokkoscore)
  get_filename_component(p3d_kokkos_libraries "${Kokkos_DIR}/../.." REALPATH)
  if(NOT p3d_kokkos_libraries IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)  # a distribution's needs no mention
    list(APPEND CMAKE_INSTALL_RPATH ${p3d_kokkos_libraries})
  endif()
endif()
