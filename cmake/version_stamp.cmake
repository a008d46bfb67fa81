# SPDX-License-Identifier: Apache-2.0
# Run as a script by P3dVersion.cmake: writes OUT from IN with the git hash of SOURCE_DIR.
set(P3D_GIT_HASH "unknown")
if(EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE hash RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(P3D_GIT_HASH "${hash}")
  endif()
endif()
configure_file(${IN} ${OUT} @ONLY)
