# SPDX-License-Identifier: Apache-2.0
# utf8proc (its CMake config is not packaged everywhere): target p3d_utf8proc.
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
mark_as_advanced(UTF8PROC_INCLUDE_DIR UTF8PROC_LIBRARY)
if(UTF8PROC_INCLUDE_DIR)
  file(STRINGS ${UTF8PROC_INCLUDE_DIR}/utf8proc.h lines REGEX "define UTF8PROC_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]*[0-9]*_?[^0-9;]+([0-9]+)[^;]*" "\\1" numbers "${lines}")
  string(REPLACE ";" "." utf8proc_VERSION "${numbers}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(utf8proc
  REQUIRED_VARS UTF8PROC_LIBRARY UTF8PROC_INCLUDE_DIR VERSION_VAR utf8proc_VERSION)
if(utf8proc_FOUND AND NOT TARGET p3d_utf8proc)
  add_library(p3d_utf8proc INTERFACE IMPORTED GLOBAL)
  target_include_directories(p3d_utf8proc INTERFACE ${UTF8PROC_INCLUDE_DIR})
  target_link_libraries(p3d_utf8proc INTERFACE ${UTF8PROC_LIBRARY})
endif()
