# SPDX-License-Identifier: Apache-2.0
# The version stamp: git hash (when built from a checkout) and what p3d was built with, in one generated header. It is
# looked at in every build, and rewritten only when it changed; one small source file includes it.
set(P3D_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
if(P3D_NVCC_VERSION)
  string(PREPEND P3D_COMPILER "nvcc ${P3D_NVCC_VERSION} with ")
endif()
set(P3D_STAMP_HEADER ${PROJECT_BINARY_DIR}/include/p3d/base/version_stamp.hpp)
# All but the hash is known now; @P3D_GIT_HASH@ stays for the second step.
set(P3D_GIT_HASH "@P3D_GIT_HASH@")
configure_file(${PROJECT_SOURCE_DIR}/cmake/version_stamp.hpp.in ${PROJECT_BINARY_DIR}/version_stamp.hpp.in @ONLY)
set(p3d_stamp_command ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR}
    -D IN=${PROJECT_BINARY_DIR}/version_stamp.hpp.in -D OUT=${P3D_STAMP_HEADER}
    -P ${PROJECT_SOURCE_DIR}/cmake/version_stamp.cmake)
execute_process(COMMAND ${p3d_stamp_command})  # so that the header exists before the first build
add_custom_target(p3d_version_stamp COMMAND ${p3d_stamp_command} BYPRODUCTS ${P3D_STAMP_HEADER}
  COMMENT "Looking at the version stamp" VERBATIM)
