# SPDX-License-Identifier: Apache-2.0
# Everything p3d needs, by find_package only: nothing is downloaded. Each is looked for quietly; what is missing is
# reported at the end of this file, all at once, with the packages to install for apt and for Spack.

set(P3D_MISSING "")
set(P3D_FOUND_REPORT "")

# p3d_need(<name> <target that proves it> <version found> <least version or ""> <what for> <apt packages>
#          <Spack packages>)
macro(p3d_need name target version least purpose apt spack)
  if(NOT TARGET ${target})
    list(APPEND P3D_MISSING "${name}|${purpose}|${apt}|${spack}")
  elseif(NOT "${least}" STREQUAL "" AND "${version}" VERSION_LESS "${least}")
    list(APPEND P3D_MISSING "${name} ${least} or newer (found ${version})|${purpose}|${apt}|${spack}")
  else()
    list(APPEND P3D_FOUND_REPORT "${name}|${version}|${purpose}")
  endif()
endmacro()

find_package(fmt QUIET)
p3d_need(fmt fmt::fmt "${fmt_VERSION}" 8.0 "text of messages" libfmt-dev fmt)

find_package(tomlplusplus QUIET)
p3d_need(toml++ tomlplusplus::tomlplusplus "${tomlplusplus_VERSION}" 3.0 "the input file" libtomlplusplus-dev
  tomlplusplus)

find_package(CLI11 QUIET)
p3d_need(CLI11 CLI11::CLI11 "${CLI11_VERSION}" 2.0 "the command line" libcli11-dev cli11)

find_package(Random123 QUIET)
p3d_need(Random123 p3d_random123 "" "" "counter-based random numbers" librandom123-dev random123)

find_package(xxHash QUIET)
p3d_need(xxHash p3d_xxhash "${xxHash_VERSION}" 0.8 "the hash of the input" libxxhash-dev xxhash)

find_package(nlohmann_json QUIET)
p3d_need(nlohmann-json nlohmann_json::nlohmann_json "${nlohmann_json_VERSION}" 3.9
  "models and tokenizers in Hugging Face form" nlohmann-json3-dev nlohmann-json)

find_package(PCRE2 QUIET)
p3d_need(PCRE2 p3d_pcre2 "${PCRE2_VERSION}" 10.30 "how tokenizers split text" libpcre2-dev pcre2)

find_package(utf8proc QUIET)
p3d_need(utf8proc p3d_utf8proc "${utf8proc_VERSION}" 2.1 "Unicode's normal forms in tokenizers" libutf8proc-dev
  utf8proc)

find_package(ZLIB QUIET)
p3d_need(zlib ZLIB::ZLIB "${ZLIB_VERSION}" "" "text in .gz files" zlib1g-dev zlib)

find_package(Zstd QUIET)
p3d_need(zstd p3d_zstd "${Zstd_VERSION}" 1.3 "text in .zst files" libzstd-dev zstd)

set(MPI_CXX_SKIP_MPICXX ON)  # p3d speaks MPI's C interface
find_package(MPI 3.0 QUIET COMPONENTS CXX)
p3d_need(MPI MPI::MPI_CXX "${MPI_CXX_VERSION}" 3.0 "messages between ranks" "mpich libmpich-dev" mpich)

find_package(HDF5Parallel QUIET)
p3d_need("HDF5 with MPI" p3d_hdf5 "${HDF5Parallel_VERSION}" 1.10 "checkpoints" libhdf5-mpich-dev hdf5+mpi)

include(P3dKokkos)
if(BUILD_SHARED_LIBS AND Kokkos_FOUND)
  p3d_check_kokkos_pic()
endif()
if(P3D_NVCC_VERSION)
  list(PREPEND P3D_FOUND_REPORT "nvcc|${P3D_NVCC_VERSION}|the rooms with Kokkos")
endif()
list(PREPEND P3D_FOUND_REPORT "C++20 compiler|${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}|everything")
p3d_need(Kokkos p3d_kokkos "${P3D_KOKKOS_VERSION}" 3.4 "kernels${P3D_KOKKOS_NOTE}"
  libtrilinos-kokkos-dev kokkos)
p3d_need(Kokkos-Kernels p3d_kokkoskernels "${P3D_KOKKOSKERNELS_VERSION}" 3.4 "GEMMs"
  libtrilinos-kokkos-kernels-dev kokkos-kernels+blas)

find_package(BLAS QUIET)  # p3d itself only sets its thread count
p3d_need(BLAS BLAS::BLAS "" "" "GEMMs below Kokkos-Kernels" libopenblas-dev openblas)

# The vendors' own BLAS, for what Kokkos-Kernels has no path: GEMMs of 16-bit matrices.
if("${Kokkos_DEVICES}" MATCHES "CUDA")
  find_package(CUDAToolkit QUIET)
  p3d_need(cuBLAS CUDA::cublas "${CUDAToolkit_VERSION}" 11.0 "16-bit GEMMs" nvidia-cuda-toolkit cuda)
elseif("${Kokkos_DEVICES}" MATCHES "HIP")
  find_package(rocblas QUIET)
  p3d_need(rocBLAS roc::rocblas "${rocblas_VERSION}" "" "16-bit GEMMs" librocblas-dev rocblas)
elseif("${Kokkos_DEVICES}" MATCHES "SYCL")
  find_package(MKL CONFIG QUIET)
  p3d_need(oneMKL MKL::MKL_SYCL::BLAS "${MKL_VERSION}" 2024.0 "16-bit GEMMs" intel-oneapi-mkl-devel
    intel-oneapi-mkl)
endif()

# Optional. Of oneDNN's threads only OpenMP's can be told to be one. A build for GPUs has no products on the host.
option(P3D_WITH_ONEDNN "Use oneDNN, where it is found, for fp32 and 16-bit GEMMs on the host" ON)
set(P3D_ONEDNN FALSE)
set(state "off (P3D_WITH_ONEDNN)")
if("${Kokkos_DEVICES}" MATCHES "CUDA|HIP|SYCL")
  set(state "not looked for: GEMMs are the GPU's")
elseif(P3D_WITH_ONEDNN)
  # A oneDNN with OpenCL ends the configure step where OpenCL's own files are missing, and Debian only recommends them.
  find_package(OpenCL QUIET)
  find_file(P3D_ONEDNN_CONFIG dnnl-config.cmake NO_CACHE
    HINTS "${dnnl_DIR}"
    PATH_SUFFIXES cmake/dnnl lib/cmake/dnnl lib64/cmake/dnnl "lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/dnnl")
  set(wants_opencl "")
  if(P3D_ONEDNN_CONFIG AND NOT OpenCL_FOUND)
    file(STRINGS "${P3D_ONEDNN_CONFIG}" wants_opencl REGEX "DNNL_GPU_RUNTIME \"OCL\"")
  endif()
  if(NOT wants_opencl)
    find_package(dnnl CONFIG QUIET)
  endif()
  if(wants_opencl)
    set(state "left out: it wants OpenCL, which was not found (Debian: ocl-icd-opencl-dev)")
  elseif(NOT TARGET DNNL::dnnl)
    set(state "not found (Debian: libdnnl-dev, Spack: onednn)")
  elseif(NOT DNNL_CPU_RUNTIME MATCHES "^(OMP|SEQ)$" OR dnnl_VERSION VERSION_LESS 2.0)
    set(state "left out: ${dnnl_VERSION} with ${DNNL_CPU_RUNTIME}, wanted is 2.0 or newer with OMP or SEQ")
  else()
    set(P3D_ONEDNN TRUE)
    set(state "${dnnl_VERSION}")
  endif()
endif()
set(P3D_OPTIONAL_REPORT "oneDNN|${state}|fp32 and 16-bit GEMMs on the host")

option(P3D_WITH_SENTENCEPIECE "Use SentencePiece, where it is found, for tokenizers in .model files" ON)
set(P3D_SENTENCEPIECE FALSE)
set(state "off (P3D_WITH_SENTENCEPIECE)")
if(P3D_WITH_SENTENCEPIECE)
  find_package(SentencePiece QUIET)
  set(state "not found (Debian: libsentencepiece-dev, Spack: sentencepiece)")
  if(TARGET p3d_sentencepiece)
    set(P3D_SENTENCEPIECE TRUE)
    set(state "${SentencePiece_VERSION}")
  endif()
endif()
list(APPEND P3D_OPTIONAL_REPORT "SentencePiece|${state}|tokenizers in .model files")

# p3d_accept(<variable> <target that proves it> <version found> <least version> <what to say where it is missing>)
# For a GPU's library: sets the variable to TRUE where it may be used, and `state` for the report.
macro(p3d_accept variable target version least missing)
  if(NOT TARGET ${target})
    set(state "${missing}")
  elseif("${version}" VERSION_LESS "${least}")
    set(state "left out: ${version}, wanted is ${least} or newer")
  else()
    set(${variable} TRUE)
    set(state "${version}")
  endif()
endmacro()

# Collectives on GPU memory. Without a GPU they are of no use, but ON compiles them, to see that they do.
set(P3D_NCCL AUTO CACHE STRING "Use NCCL or RCCL: OFF, ON (an error if it is missing), AUTO (where p3d has GPUs)")
set_property(CACHE P3D_NCCL PROPERTY STRINGS AUTO ON OFF)
set(P3D_HAS_NCCL FALSE)
set(NCCL_VENDOR NCCL)
if("${Kokkos_DEVICES}" MATCHES "HIP")
  set(NCCL_VENDOR RCCL)
endif()
if(P3D_NCCL STREQUAL "AUTO" AND NOT "${Kokkos_DEVICES}" MATCHES "CUDA|HIP")
  set(state "not looked for: this Kokkos has no GPUs for it (P3D_NCCL)")
elseif(P3D_NCCL)
  find_package(NCCL QUIET)
  p3d_accept(P3D_HAS_NCCL p3d_nccl "${NCCL_VERSION}" 2.14
    "not found, or its GPU runtime was not (Debian: libnccl-dev, librccl-dev, Spack: nccl, rccl)")
  if(NOT P3D_HAS_NCCL AND NOT P3D_NCCL STREQUAL "AUTO")
    string(TOLOWER ${NCCL_VENDOR} package)
    list(APPEND P3D_MISSING
      "${NCCL_VENDOR} 2.14 or newer, and its GPU runtime|P3D_NCCL=ON|lib${package}-dev|${package}")
  elseif(NOT P3D_HAS_NCCL)
    message(WARNING "${NCCL_VENDOR}: ${state}. Without it all that GPUs tell each other goes through MPI, most of it "
      "through the host's memory, and several GPUs are slow. Set ${NCCL_VENDOR}'s prefix by NCCL_ROOT in the "
      "environment or -DCMAKE_PREFIX_PATH=..., or say -DP3D_NCCL=OFF to go without.")
  endif()
else()
  set(state "off (P3D_NCCL)")
endif()
list(APPEND P3D_OPTIONAL_REPORT "${NCCL_VENDOR}|${state}|collectives on GPU memory")

# Attention as one kernel, where p3d has GPUs of NVIDIA.
set(P3D_CUDNN AUTO CACHE STRING "Use cuDNN: OFF, ON (an error if it is missing), AUTO (where Kokkos has CUDA)")
set_property(CACHE P3D_CUDNN PROPERTY STRINGS AUTO ON OFF)
set(P3D_HAS_CUDNN FALSE)
if(NOT "${Kokkos_DEVICES}" MATCHES "CUDA")
  set(state "not looked for: this Kokkos has no CUDA (P3D_CUDNN)")
elseif(P3D_CUDNN)
  find_package(CUDNN QUIET)
  p3d_accept(P3D_HAS_CUDNN p3d_cudnn "${CUDNN_VERSION}" 9.0
    "not found, or its C++ frontend was not (CUDNN_ROOT, CUDNN_FRONTEND_ROOT)")
else()
  set(state "off (P3D_CUDNN)")
endif()
if(NOT P3D_HAS_CUDNN AND P3D_CUDNN STREQUAL "ON")
  list(APPEND P3D_MISSING "cuDNN 9.0 or newer with its C++ frontend|P3D_CUDNN=ON|nvidia-cudnn|cudnn")
endif()
list(APPEND P3D_OPTIONAL_REPORT "cuDNN|${state}|attention as one kernel on GPUs")

if(P3D_BUILD_TESTS)
  find_package(GTest QUIET)
  p3d_need(GoogleTest GTest::gtest "${GTest_VERSION}" 1.10 "the tests" libgtest-dev googletest)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  p3d_need(Python3 Python3::Interpreter "${Python3_VERSION}" 3.8 "the lint tests, standard library only"
    python3 python)
endif()

if(P3D_MISSING)
  # Lines that begin with a space are printed as they are, not wrapped.
  set(text "p3d needs some things that were not found:\n")
  set(all_apt "")
  set(all_spack "")
  foreach(entry IN LISTS P3D_MISSING)
    string(REPLACE "|" ";" fields "${entry}")
    list(GET fields 0 name)
    list(GET fields 1 purpose)
    list(GET fields 2 apt)
    list(GET fields 3 spack)
    string(APPEND text "  - ${name}: ${purpose}\n")
    string(APPEND all_apt " ${apt}")
    string(APPEND all_spack " ${spack}")
  endforeach()
  string(APPEND text "  Debian, Ubuntu:       apt-get install${all_apt}\n")
  string(APPEND text "  Spack:                spack install${all_spack}\n")
  string(APPEND text "  Installed elsewhere:  add its prefix to -DCMAKE_PREFIX_PATH=...")
  message(FATAL_ERROR "${text}")
endif()

# What was found and what for, at the end of the configure step.
function(p3d_dependency_report)
  list(LENGTH P3D_FOUND_REPORT count)
  message(STATUS "p3d ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}: all ${count} things it needs were found")
  foreach(entry IN LISTS P3D_FOUND_REPORT P3D_OPTIONAL_REPORT)
    string(REPLACE "|" ";" fields "${entry}")
    list(GET fields 0 name)
    list(GET fields 1 version)
    list(GET fields 2 purpose)
    string(LENGTH "${name}" used)
    math(EXPR pad "16 - ${used}")
    string(REPEAT " " ${pad} space)
    string(LENGTH "${version}" used)
    math(EXPR pad "12 - ${used}")
    if(pad LESS 1)
      set(pad 1)
    endif()
    string(REPEAT " " ${pad} space2)
    message(STATUS "  ${name}${space}${version}${space2}${purpose}")
  endforeach()
  message(STATUS "  compiler cache  ${CMAKE_CXX_COMPILER_LAUNCHER}")
  message(STATUS "  options         native arch ${P3D_NATIVE_ARCH}, shared libp3d ${BUILD_SHARED_LIBS}, "
    "tests ${P3D_BUILD_TESTS}, sanitizers '${P3D_SANITIZE}'")
endfunction()
