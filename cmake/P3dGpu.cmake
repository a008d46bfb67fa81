# SPDX-License-Identifier: Apache-2.0
# What a Kokkos with GPUs asks of the compiler. Included by P3dKokkos.cmake once Kokkos is found, so that a build that
# cannot end well stops here, with the line to use, and not at an option that g++ does not know.
# Sets P3D_NVCC_VERSION: "13.0.88", or "" where the compiler is not NVIDIA's.

set(P3D_NVCC_VERSION "")

# Kokkos compiles for CUDA by NVIDIA's compiler, which its script nvcc_wrapper (alone, or below mpicxx) makes of the C++
# compiler, or by Clang. The preprocessor tells which it is: their command lines and version texts are the host
# compiler's.
function(p3d_find_nvcc version)
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/p3d_nvcc.cpp)
  file(WRITE ${probe}
    "#ifdef __NVCC__\np3d_nvcc __CUDACC_VER_MAJOR__.__CUDACC_VER_MINOR__.__CUDACC_VER_BUILD__\n#endif\n")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${flags} -E ${probe} OUTPUT_VARIABLE text ERROR_QUIET)
  set(found "")
  if(text MATCHES "p3d_nvcc ([0-9]+) *\\. *([0-9]+) *\\. *([0-9]+)")
    set(found "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
  endif()
  set(${version} "${found}" PARENT_SCOPE)
endfunction()

if("${Kokkos_DEVICES}" MATCHES "CUDA")
  p3d_find_nvcc(P3D_NVCC_VERSION)
  if(NOT P3D_NVCC_VERSION AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # ${prefix}/bin/nvcc_wrapper lies beside ${prefix}/lib/cmake/Kokkos.
    find_program(P3D_NVCC_WRAPPER nvcc_wrapper HINTS "${Kokkos_DIR}/../../../bin" "${Kokkos_DIR}/../../../../bin")
    mark_as_advanced(P3D_NVCC_WRAPPER)
    set(wrapper "<where Kokkos is>/bin/nvcc_wrapper")
    if(P3D_NVCC_WRAPPER)
      get_filename_component(wrapper "${P3D_NVCC_WRAPPER}" REALPATH)
    endif()
    # CMake takes another compiler in an empty build folder only.
    message(FATAL_ERROR "This Kokkos is for CUDA (${Kokkos_DIR}), and ${CMAKE_CXX_COMPILER} does not compile for it.\n"
      "Configure again, in an empty build folder, with\n"
      "  -DCMAKE_CXX_COMPILER=${wrapper}\n"
      "NVCC_WRAPPER_DEFAULT_COMPILER in the environment names the host's compiler, where that is not g++.\n"
      "(Kokkos' kokkos_launch_compiler is not used: rooms without Kokkos go to the host's compiler.)")
  endif()
  if(P3D_NVCC_VERSION VERSION_GREATER_EQUAL 13.0 AND Kokkos_VERSION VERSION_LESS 4.7.1)
    message(FATAL_ERROR "Kokkos ${Kokkos_VERSION} (${Kokkos_DIR}) does not compile with nvcc ${P3D_NVCC_VERSION}: "
      "CUDA 13 needs Kokkos 4.7.01 or newer. Install a newer Kokkos, or use CUDA 12.")
  endif()
endif()

# A static Kokkos goes into libp3d, which is a shared library by default: only position-independent code can. Tried by
# linking one, since nothing that Kokkos installs says how it was compiled.
function(p3d_check_kokkos_pic)
  set(core Kokkos::kokkoscore)
  if(NOT TARGET ${core})
    return()
  endif()
  get_target_property(type ${core} TYPE)
  get_target_property(archive ${core} LOCATION)
  if(NOT type STREQUAL "STATIC_LIBRARY" OR NOT EXISTS "${archive}" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    return()
  endif()
  set(library ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/p3d_pic.so)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -shared -Wl,--whole-archive ${archive} -Wl,--no-whole-archive
    -Wl,--unresolved-symbols=ignore-all -o ${library} RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  file(REMOVE ${library})
  if(failed AND text MATCHES "recompile with -fP")
    message(FATAL_ERROR "Kokkos (${archive}) is a static library without position-independent code, which cannot go "
      "into a shared libp3d.\nBuild Kokkos and Kokkos-Kernels with -DCMAKE_POSITION_INDEPENDENT_CODE=ON (Spack: +pic), "
      "or p3d with -DBUILD_SHARED_LIBS=OFF.")
  endif()
endfunction()
