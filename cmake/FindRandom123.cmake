# SPDX-License-Identifier: Apache-2.0
# Random123 (headers only, without a CMake config): target p3d_random123. Installed with p3d, because a public header of
# p3d includes <Random123/philox.h>.
find_path(RANDOM123_INCLUDE_DIR Random123/philox.h)
mark_as_advanced(RANDOM123_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Random123 REQUIRED_VARS RANDOM123_INCLUDE_DIR)
if(Random123_FOUND AND NOT TARGET p3d_random123)
  add_library(p3d_random123 INTERFACE IMPORTED GLOBAL)
  target_include_directories(p3d_random123 INTERFACE ${RANDOM123_INCLUDE_DIR})
endif()
