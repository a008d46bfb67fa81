# Everything p3d needs, by find_package only: nothing is downloaded. Each find_* is quiet; a missing one is reported at the
# end of this file together with all the others, with the package to install for apt and for Spack.

set(P3D_MISSING "")
set(P3D_FOUND_REPORT "")

macro(p3d_note_found name version purpose)
  list(APPEND P3D_FOUND_REPORT "${name}|${version}|${purpose}")
endmacro()
macro(p3d_note_missing name purpose apt spack)
  list(APPEND P3D_MISSING "${name}|${purpose}|${apt}|${spack}")
endmacro()

# --- fmt: text -------------------------------------------------------------------------------------------------
find_package(fmt QUIET)
if(TARGET fmt::fmt)
  p3d_note_found(fmt "${fmt_VERSION}" "formatting of messages")
else()
  p3d_note_missing(fmt "formatting of messages" libfmt-dev fmt)
endif()

# --- toml++ ----------------------------------------------------------------------------------------------------
find_package(tomlplusplus QUIET)
if(TARGET tomlplusplus::tomlplusplus)
  p3d_note_found(toml++ "${tomlplusplus_VERSION}" "the input file")
else()
  p3d_note_missing(toml++ "the input file" libtomlplusplus-dev tomlplusplus)
endif()

# --- CLI11 -----------------------------------------------------------------------------------------------------
find_package(CLI11 QUIET)
if(TARGET CLI11::CLI11)
  p3d_note_found(CLI11 "${CLI11_VERSION}" "the command line")
else()
  p3d_note_missing(CLI11 "the command line" libcli11-dev cli11)
endif()

# --- Random123 (headers only, no CMake config) -----------------------------------------------------------------
find_path(RANDOM123_INCLUDE_DIR Random123/philox.h)
mark_as_advanced(RANDOM123_INCLUDE_DIR)
if(RANDOM123_INCLUDE_DIR)
  add_library(p3d_random123 INTERFACE)
  target_include_directories(p3d_random123 SYSTEM INTERFACE $<BUILD_INTERFACE:${RANDOM123_INCLUDE_DIR}>)
  p3d_note_found(Random123 "-" "counter-based random numbers")
else()
  p3d_note_missing(Random123 "counter-based random numbers" librandom123-dev random123)
endif()

# --- xxHash ----------------------------------------------------------------------------------------------------
find_path(XXHASH_INCLUDE_DIR xxhash.h)
find_library(XXHASH_LIBRARY xxhash)
mark_as_advanced(XXHASH_INCLUDE_DIR XXHASH_LIBRARY)
if(XXHASH_INCLUDE_DIR AND XXHASH_LIBRARY)
  add_library(p3d_xxhash INTERFACE)
  target_include_directories(p3d_xxhash SYSTEM INTERFACE $<BUILD_INTERFACE:${XXHASH_INCLUDE_DIR}>)
  target_link_libraries(p3d_xxhash INTERFACE ${XXHASH_LIBRARY})
  p3d_note_found(xxHash "-" "the hash of the input")
else()
  p3d_note_missing(xxHash "the hash of the input" libxxhash-dev xxhash)
endif()

# --- MPI -------------------------------------------------------------------------------------------------------
find_package(MPI 3.0 QUIET COMPONENTS CXX)
if(TARGET MPI::MPI_CXX)
  p3d_note_found(MPI "${MPI_CXX_VERSION}" "messages between ranks")
else()
  p3d_note_missing(MPI "messages between ranks" "mpich libmpich-dev" mpich)
endif()

# --- Kokkos and Kokkos-Kernels, 3.4 up to 5.x ------------------------------------------------------------------
include(P3dKokkos)

# --- BLAS (below Kokkos-Kernels; we only need its thread count) ------------------------------------------------
find_package(BLAS QUIET)
if(BLAS_FOUND)
  p3d_note_found(BLAS "-" "matrix products, below Kokkos-Kernels")
else()
  p3d_note_missing(BLAS "matrix products, below Kokkos-Kernels" libopenblas-dev openblas)
endif()

if(P3D_BUILD_TESTS)
  find_package(GTest QUIET)
  if(TARGET GTest::gtest)
    p3d_note_found(GoogleTest "${GTest_VERSION}" "the tests")
  else()
    p3d_note_missing(GoogleTest "the tests (or -DP3D_BUILD_TESTS=OFF)" libgtest-dev googletest)
  endif()
endif()

if(P3D_MISSING)
  set(text "p3d: some of what it needs was not found:\n")
  set(all_apt "")
  set(all_spack "")
  foreach(entry IN LISTS P3D_MISSING)
    string(REPLACE "|" ";" fields "${entry}")
    list(GET fields 0 name)
    list(GET fields 1 purpose)
    list(GET fields 2 apt)
    list(GET fields 3 spack)
    string(APPEND text "  - ${name}: ${purpose}\n")
    string(APPEND all_apt " ${apt}")
    string(APPEND all_spack " ${spack}")
  endforeach()
  string(APPEND text "Debian, Ubuntu:  apt-get install${all_apt}\nSpack:           spack install${all_spack}\n")
  string(APPEND text "Installed elsewhere: add its prefix to CMAKE_PREFIX_PATH.")
  message(FATAL_ERROR "${text}")
endif()

function(p3d_dependency_report)
  message(STATUS "p3d ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}; found:")
  foreach(entry IN LISTS P3D_FOUND_REPORT)
    string(REPLACE "|" ";" fields "${entry}")
    list(GET fields 0 name)
    list(GET fields 1 version)
    list(GET fields 2 purpose)
    message(STATUS "  ${name} ${version}: ${purpose}")
  endforeach()
endfunction()
