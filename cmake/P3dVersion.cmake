# The version stamp: git hash (when built from a checkout) and what p3d was built with, in one generated header.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE P3D_GIT_HASH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT P3D_GIT_HASH)
  set(P3D_GIT_HASH "unknown")
endif()
set(P3D_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/version_stamp.hpp.in
               ${PROJECT_BINARY_DIR}/include/p3d/base/version_stamp.hpp @ONLY)
