# SPDX-License-Identifier: Apache-2.0
# p3d_add_test(<name> SOURCES a.cpp ... [LINK <targets>] [RANKS 1 2 3 ...] [MORE_RANKS 6 8 ...] [LABELS ...]
#              [TIMEOUT s] [THREADS n] [ARGS ...])
#
# Without RANKS: one GoogleTest program, one ctest entry, no MPI launcher.
# With RANKS: the program has its own main, which starts MPI (support/mpi_main.hpp); one ctest entry <name>_np<k> for
# each k. Too few cores means oversubscribed ranks, never an unregistered test. Those of MORE_RANKS have the label
# "more": scripts/test.sh --more runs them, too.
include(ProcessorCount)
ProcessorCount(P3D_CORES)
if(P3D_CORES EQUAL 0)
  set(P3D_CORES 1)
endif()

# How much longer tests may take than usual: in sanitized builds, and with Open MPI, whose ranks poll while they wait.
set(P3D_TEST_TIME_FACTOR 1)

# What every test process gets. Threads that wait sleep: tests run with more ranks and threads than cores.
set(P3D_TEST_ENVIRONMENT "OMP_PROC_BIND=false;OMP_WAIT_POLICY=passive;OPENBLAS_NUM_THREADS=1")
if(P3D_SANITIZE)
  set(P3D_TEST_TIME_FACTOR 5)
  list(APPEND P3D_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
    # MPI, HDF5 and the BLAS are not compiled with the sanitizer: what they do among themselves it cannot judge.
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66:\
suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
endif()

# mpiexec of Open MPI refuses more ranks than cores, and root, unless told; its ranks spin unless told to yield.
set(P3D_MPIEXEC_FLAGS "")
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE p3d_mpiexec_version ERROR_QUIET)
if(p3d_mpiexec_version MATCHES "Open ?MPI|OpenRTE")
  set(P3D_MPIEXEC_FLAGS --oversubscribe)
  if(P3D_TEST_TIME_FACTOR LESS 3)
    set(P3D_TEST_TIME_FACTOR 3)
  endif()
  list(APPEND P3D_TEST_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_mpi_yield_when_idle=1)
endif()

function(p3d_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;THREADS" "SOURCES;LINK;RANKS;MORE_RANKS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${P3D_TEST_TIME_FACTOR}")
  if(NOT ARG_THREADS)
    set(ARG_THREADS 1)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/bin)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE P3D_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} p3d_options GTest::gtest)
  if(TARGET p3d_test_headers)
    # Those of a program with other options than p3d_test_headers would be refused.
    get_directory_property(options COMPILE_OPTIONS)
    foreach(used IN LISTS ARG_LINK)
      string(REGEX REPLACE "^p3d_" "" room ${used})
      get_property(kokkos GLOBAL PROPERTY P3D_KOKKOS_IN_${room})
      if(kokkos AND "-O1" IN_LIST options)
        target_precompile_headers(${name} REUSE_FROM p3d_test_headers)
        break()
      endif()
    endforeach()
  endif()
  set(environment "OMP_NUM_THREADS=${ARG_THREADS};${P3D_TEST_ENVIRONMENT}")
  if(ARG_RANKS)
    foreach(ranks IN LISTS ARG_RANKS ARG_MORE_RANKS)
      set(more "")
      if(ranks IN_LIST ARG_MORE_RANKS)
        set(more "more")
      endif()
      math(EXPR cores "${ranks} * ${ARG_THREADS}")
      if(cores GREATER P3D_CORES)
        set(cores ${P3D_CORES})
      endif()
      add_test(NAME ${name}_np${ranks}
        COMMAND ${MPIEXEC_EXECUTABLE} ${P3D_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${name}>
                ${ARG_ARGS})
      set_tests_properties(${name}_np${ranks} PROPERTIES PROCESSORS ${cores} TIMEOUT ${ARG_TIMEOUT}
        LABELS "mpi;${ARG_LABELS};${more}" ENVIRONMENT "${environment}")
    endforeach()
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "unit;${ARG_LABELS}"
      PROCESSORS ${ARG_THREADS} ENVIRONMENT "${environment}")
  endif()
endfunction()

# p3d_also_with_threads(<name> <threads> [<suffix> <variable=value>...]): registers the unit test <name> once more, as
# <name>_t<threads><suffix>, where Kokkos has a backend with host threads. Races do not show on one thread.
function(p3d_also_with_threads name threads)
  list(POP_FRONT ARGN suffix)
  p3d_register_with_threads(${name}_t${threads}${suffix} ${threads} 1 "unit;threads" "${ARGN}" ${name})
endfunction()

# p3d_also_with_threads_on(<name> <ranks> <threads>): the same for a test on ranks, as <name>_np<ranks>_t<threads>.
function(p3d_also_with_threads_on name ranks threads)
  p3d_register_with_threads(${name}_np${ranks}_t${threads} ${threads} ${ranks} "mpi;threads" ""
    ${MPIEXEC_EXECUTABLE} ${P3D_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${name}>)
endfunction()

function(p3d_register_with_threads name threads ranks labels environment)
  if(NOT "${Kokkos_DEVICES}" MATCHES "OPENMP|THREADS")
    return()
  endif()
  math(EXPR processors "${threads} * ${ranks}")
  if(processors GREATER P3D_CORES)
    set(processors ${P3D_CORES})
  endif()
  math(EXPR seconds "240 * ${P3D_TEST_TIME_FACTOR}")
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} LABELS "${labels}" PROCESSORS ${processors}
    ENVIRONMENT "OMP_NUM_THREADS=${threads};${P3D_TEST_ENVIRONMENT};${environment}")
endfunction()
