# SPDX-License-Identifier: Apache-2.0
# zstd (its CMake config is not packaged everywhere): target p3d_zstd.
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY zstd)
mark_as_advanced(ZSTD_INCLUDE_DIR ZSTD_LIBRARY)
if(ZSTD_INCLUDE_DIR)
  file(STRINGS ${ZSTD_INCLUDE_DIR}/zstd.h lines REGEX "define ZSTD_VERSION_(MAJOR|MINOR|RELEASE) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]*[0-9]*_?[^0-9;]+([0-9]+)[^;]*" "\\1" numbers "${lines}")
  string(REPLACE ";" "." Zstd_VERSION "${numbers}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Zstd
  REQUIRED_VARS ZSTD_LIBRARY ZSTD_INCLUDE_DIR VERSION_VAR Zstd_VERSION)
if(Zstd_FOUND AND NOT TARGET p3d_zstd)
  add_library(p3d_zstd INTERFACE IMPORTED GLOBAL)
  target_include_directories(p3d_zstd INTERFACE ${ZSTD_INCLUDE_DIR})
  target_link_libraries(p3d_zstd INTERFACE ${ZSTD_LIBRARY})
endif()
