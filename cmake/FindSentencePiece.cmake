# SPDX-License-Identifier: Apache-2.0
# SentencePiece (it has no CMake config): the version is pkg-config's: target p3d_sentencepiece.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
mark_as_advanced(SENTENCEPIECE_INCLUDE_DIR SENTENCEPIECE_LIBRARY)
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_SENTENCEPIECE QUIET sentencepiece)
  set(SentencePiece_VERSION ${PC_SENTENCEPIECE_VERSION})
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SENTENCEPIECE_LIBRARY SENTENCEPIECE_INCLUDE_DIR VERSION_VAR SentencePiece_VERSION)
if(SentencePiece_FOUND AND NOT TARGET p3d_sentencepiece)
  add_library(p3d_sentencepiece INTERFACE IMPORTED GLOBAL)
  target_include_directories(p3d_sentencepiece INTERFACE ${SENTENCEPIECE_INCLUDE_DIR})
  target_link_libraries(p3d_sentencepiece INTERFACE ${SENTENCEPIECE_LIBRARY})
endif()
