# p3d_list_schedules(<source>): defines P3D_GENERATORS in a source file, as P3D_GENERATOR(x) for every schedule
# src/schedule/generators/x.cpp.
function(p3d_list_schedules source)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/schedule/generators/*.cpp)
  set(list "")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME_WE)
    string(APPEND list "P3D_GENERATOR(${name}) ")
  endforeach()
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "P3D_GENERATORS=${list}")
endfunction()
