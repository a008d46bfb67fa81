# SPDX-License-Identifier: Apache-2.0
# PCRE2 with 8-bit characters (its CMake config is not packaged everywhere): target p3d_pcre2.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)
if(PCRE2_INCLUDE_DIR)
  file(STRINGS ${PCRE2_INCLUDE_DIR}/pcre2.h lines REGEX "define PCRE2_(MAJOR|MINOR) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]*[0-9]*_?[^0-9;]+([0-9]+)[^;]*" "\\1" numbers "${lines}")
  string(REPLACE ";" "." PCRE2_VERSION "${numbers}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PCRE2
  REQUIRED_VARS PCRE2_LIBRARY PCRE2_INCLUDE_DIR VERSION_VAR PCRE2_VERSION)
if(PCRE2_FOUND AND NOT TARGET p3d_pcre2)
  add_library(p3d_pcre2 INTERFACE IMPORTED GLOBAL)
  target_include_directories(p3d_pcre2 INTERFACE ${PCRE2_INCLUDE_DIR})
  target_link_libraries(p3d_pcre2 INTERFACE ${PCRE2_LIBRARY})
endif()
