# SPDX-License-Identifier: Apache-2.0
# cuDNN and its C++ frontend, which is headers alone (neither has a CMake config everywhere): target p3d_cudnn. Python's
# packages nvidia-cudnn-cu13 and nvidia-cudnn-frontend have both; theirs has no libcudnn.so.
find_package(CUDAToolkit QUIET)
set(hints ENV CUDNN_ROOT ENV CUDNN_HOME ENV CUDNN_PATH ${CUDAToolkit_LIBRARY_DIR}/..)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${hints} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR HINTS ${hints} ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64)
find_library(CUDNN_GRAPH_LIBRARY NAMES cudnn_graph libcudnn_graph.so.9 NAMES_PER_DIR
  HINTS ${hints} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ENV CUDNN_FRONTEND_ROOT ${hints} PATH_SUFFIXES include)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY CUDNN_GRAPH_LIBRARY CUDNN_FRONTEND_INCLUDE_DIR)
if(CUDNN_INCLUDE_DIR)
  file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h lines REGEX "define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]+" "" numbers "${lines}")
  string(REPLACE ";" "." CUDNN_VERSION "${numbers}")
endif()
if(TARGET CUDA::cudart AND TARGET CUDA::nvrtc)
  set(CUDNN_RUNTIME CUDA::cudart CUDA::nvrtc)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN
  REQUIRED_VARS CUDNN_LIBRARY CUDNN_GRAPH_LIBRARY CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR CUDNN_RUNTIME
  VERSION_VAR CUDNN_VERSION)
if(CUDNN_FOUND AND NOT TARGET p3d_cudnn)
  add_library(p3d_cudnn INTERFACE IMPORTED GLOBAL)
  target_include_directories(p3d_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${CUDNN_FRONTEND_INCLUDE_DIR})
  target_link_libraries(p3d_cudnn INTERFACE ${CUDNN_LIBRARY} ${CUDNN_GRAPH_LIBRARY} ${CUDNN_RUNTIME} fmt::fmt
    nlohmann_json::nlohmann_json)
endif()
