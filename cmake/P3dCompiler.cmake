# Settings of the whole build that no consumer of p3d inherits: compiler cache, sanitizers.

# A project-wide habit: use ccache when it is there, unless the caller chose a launcher (or none: -DCMAKE_CXX_COMPILER_LAUNCHER=).
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(P3D_CCACHE ccache)
  mark_as_advanced(P3D_CCACHE)
  if(P3D_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${P3D_CCACHE})
  endif()
endif()

if(P3D_SANITIZE)
  add_compile_options(-fsanitize=${P3D_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${P3D_SANITIZE})
endif()
