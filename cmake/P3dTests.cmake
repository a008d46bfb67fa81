# p3d_add_test(<name> SOURCES a.cpp ... [LINK <targets>] [RANKS 1 2 3 ...] [LABELS ...] [TIMEOUT s] [THREADS n])
#
# Without RANKS: one GoogleTest program, one ctest entry, no MPI launcher.
# With RANKS: the program has its own main that starts MPI (p3d_mpi_test_main); one ctest entry <name>_np<k> for each k.
# Too few cores means oversubscribed ranks, never an unregistered test.
include(ProcessorCount)
ProcessorCount(P3D_CORES)
if(P3D_CORES EQUAL 0)
  set(P3D_CORES 1)
endif()

function(p3d_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;THREADS" "SOURCES;LINK;RANKS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_THREADS)
    set(ARG_THREADS 1)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE P3D_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest)
  set(environment "OMP_NUM_THREADS=${ARG_THREADS};OMP_PROC_BIND=false;OPENBLAS_NUM_THREADS=1")
  if(ARG_RANKS)
    foreach(ranks IN LISTS ARG_RANKS)
      math(EXPR cores "${ranks} * ${ARG_THREADS}")
      if(cores GREATER P3D_CORES)
        set(cores ${P3D_CORES})
      endif()
      add_test(NAME ${name}_np${ranks}
        COMMAND ${MPIEXEC_EXECUTABLE} ${P3D_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${name}> ${ARG_ARGS})
      set_tests_properties(${name}_np${ranks} PROPERTIES PROCESSORS ${cores} TIMEOUT ${ARG_TIMEOUT}
        LABELS "mpi;${ARG_LABELS}" ENVIRONMENT "${environment}")
    endforeach()
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "unit;${ARG_LABELS}"
      PROCESSORS ${ARG_THREADS} ENVIRONMENT "${environment}")
  endif()
endfunction()
