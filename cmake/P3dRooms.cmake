# SPDX-License-Identifier: Apache-2.0
# A room is a folder of src/ with public headers in include/p3d/<room>. Its sources are compiled once, into objects that
# go into libp3d and into a static archive p3d_<room>, which with the archives of the rooms it uses is all that its
# tests link: a room that leans on something it may not use does not link there.

add_library(p3d_options INTERFACE)
target_compile_features(p3d_options INTERFACE cxx_std_20)
target_include_directories(p3d_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_compile_options(p3d_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang,IntelLLVM>:-Wall;-Wextra;-Wpedantic>)
# Intel's compiler takes fast math where nobody says otherwise: NaN and infinity would pass every check for them, and
# sums would have another order in each kernel.
target_compile_options(p3d_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,IntelLLVM>:-fp-model=precise>)
if(P3D_WERROR)
  target_compile_options(p3d_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang,IntelLLVM>:-Werror>)
endif()
if(P3D_NATIVE_ARCH)
  # p3d_options never leaves the build tree, so neither does this.
  target_compile_options(p3d_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-march=native>)
endif()

if("${Kokkos_DEVICES}" MATCHES "CUDA")
  # {fmt} makes only half of its functions constexpr where it meets nvcc, which then cannot compile it as C++20.
  target_compile_definitions(p3d_options INTERFACE FMT_USE_CONSTEXPR=1)
endif()

# Flags by which nvcc_wrapper calls the host's compiler alone. nvcc finds CUDA's headers by itself, so CMake takes their
# folder for one that every call has, and leaves it out.
set(P3D_NVCC_HOST_ONLY --host-only)
foreach(folder IN LISTS CUDAToolkit_INCLUDE_DIRS)
  list(APPEND P3D_NVCC_HOST_ONLY "-isystem${folder}")  # in one word, for a target and a source alike
endforeach()

# p3d_host_only(<target>): its sources have no Kokkos in them and are for the host's compiler: a compiler for devices
# need not understand their third parties.
function(p3d_host_only target)
  if(P3D_NVCC_VERSION)
    target_compile_options(${target} PRIVATE ${P3D_NVCC_HOST_ONLY})
  elseif(CMAKE_CXX_COMPILER MATCHES "hipcc")
    target_compile_options(${target} PRIVATE -x c++)
  endif()
endfunction()

# Where several sources are compiled at a time (CMAKE_UNITY_BUILD, as scripts/ and CI do), the headers of Kokkos are
# compiled once for all. Other builds look whether each source includes what it needs. Compilers for devices have
# precompiled headers of their own kind, or none.
set(P3D_PRECOMPILED FALSE)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT "${Kokkos_DEVICES}" MATCHES "CUDA|HIP|SYCL")
  set(P3D_PRECOMPILED TRUE)
endif()

# p3d_precompile_headers(<target>): compiles them with <target>'s options, for others to reuse. Those of MPI and {fmt}
# are not among them: not all rooms have these, and a macro that one lacks makes it refuse all.
function(p3d_precompile_headers target)
  target_link_libraries(${target} PRIVATE p3d_options p3d_kokkos)
  target_precompile_headers(${target} PRIVATE <Kokkos_Core.hpp> <algorithm> <functional> <map> <memory> <optional>
    <string> <vector>)
endfunction()

if(P3D_PRECOMPILED)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/src/headers.cpp CONTENT "\n")
  add_library(p3d_room_headers OBJECT ${PROJECT_BINARY_DIR}/src/headers.cpp)
  p3d_precompile_headers(p3d_room_headers)
endif()

set_property(GLOBAL PROPERTY P3D_ROOMS "")
set_property(GLOBAL PROPERTY P3D_THIRD_PARTIES "")

# p3d_add_room(<room> [NOT_IN_LIBRARY] SOURCES a.cpp ... USES <room>... [LINK <target>...])
# NOT_IN_LIBRARY: only programs of this build have its objects; its headers are not installed.
function(p3d_add_room room)
  cmake_parse_arguments(ARG "NOT_IN_LIBRARY" "" "SOURCES;USES;LINK" ${ARGN})
  # Include folders and definitions of this room and of what it uses.
  add_library(p3d_${room}_usage INTERFACE)
  target_link_libraries(p3d_${room}_usage INTERFACE p3d_options ${ARG_LINK})
  add_library(p3d_${room}_objects OBJECT ${ARG_SOURCES})
  target_include_directories(p3d_${room}_objects PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(p3d_${room}_objects PRIVATE p3d_${room}_usage)
  set(kokkos FALSE)
  foreach(used IN LISTS ARG_LINK ARG_USES)
    get_property(with_kokkos GLOBAL PROPERTY P3D_KOKKOS_IN_${used})
    if(with_kokkos OR used STREQUAL "p3d_kokkos")
      set(kokkos TRUE)
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY P3D_KOKKOS_IN_${room} ${kokkos})
  if(NOT kokkos)
    p3d_host_only(p3d_${room}_objects)
  elseif(P3D_PRECOMPILED)
    target_precompile_headers(p3d_${room}_objects REUSE_FROM p3d_room_headers)
  endif()
  add_library(p3d_${room} STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:p3d_${room}_objects>)
  target_link_libraries(p3d_${room} PUBLIC p3d_${room}_usage)
  foreach(used IN LISTS ARG_USES)
    if(NOT TARGET p3d_${used})
      message(FATAL_ERROR "room ${room} uses ${used}, which does not stand above it in src/CMakeLists.txt")
    endif()
    target_link_libraries(p3d_${room}_usage INTERFACE p3d_${used}_usage)
    target_link_libraries(p3d_${room} PUBLIC p3d_${used})
  endforeach()
  if(NOT ARG_NOT_IN_LIBRARY)
    set_property(GLOBAL APPEND PROPERTY P3D_ROOMS ${room})
    set_property(GLOBAL APPEND PROPERTY P3D_THIRD_PARTIES ${ARG_LINK})
  endif()
endfunction()
