# A room is a folder of src/ with public headers in include/p3d/<room>. Each room is compiled once (object library),
# linked into libp3d, and also available to its unit tests as a static archive that holds only what it may use.

add_library(p3d_options INTERFACE)
target_compile_features(p3d_options INTERFACE cxx_std_20)
target_include_directories(p3d_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
target_compile_options(p3d_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang,IntelLLVM>:-Wall -Wextra -Wpedantic>)
if(P3D_WERROR)
  target_compile_options(p3d_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-Werror>)
endif()
if(P3D_NATIVE_ARCH)
  target_compile_options(p3d_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-march=native>)
endif()

set_property(GLOBAL PROPERTY P3D_ROOMS "")

# p3d_add_room(<room> SOURCES a.cpp ... USES <room>... [LINK <target>...])
function(p3d_add_room room)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;LINK" ${ARGN})
  add_library(p3d_${room}_objects OBJECT ${ARG_SOURCES})
  target_link_libraries(p3d_${room}_objects PUBLIC p3d_options ${ARG_LINK})
  target_include_directories(p3d_${room}_objects PRIVATE ${PROJECT_SOURCE_DIR}/src)
  add_library(p3d_${room} STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:p3d_${room}_objects>)
  target_link_libraries(p3d_${room} PUBLIC p3d_options ${ARG_LINK})
  foreach(used IN LISTS ARG_USES)
    # Usage requirements (include folders, definitions) only: the objects themselves are linked once, below.
    target_link_libraries(p3d_${room} PUBLIC p3d_${used})
    get_target_property(links p3d_${used}_objects INTERFACE_LINK_LIBRARIES)
    target_link_libraries(p3d_${room}_objects PUBLIC ${links})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY P3D_ROOMS ${room})
endfunction()
