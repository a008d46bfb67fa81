# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts here: Kokkos and Kokkos-Kernels for one kind of GPU, of the newest version that is packaged.
#
# Kokkos' version comes from Debian's unstable distribution, read through the machine's own mirror in folders of ours:
# the machine's apt stays as it is, and no root is needed. Two ways, in this order:
#   source    the source package, built: a whole Kokkos. P3D_KOKKOS_SOURCE=<folder> takes <folder>/kokkos and
#             <folder>/kokkos-kernels instead.
#   headers   where the source package cannot be had: the headers of the binary package, which has all backends', with a
#             configuration for this one. All of p3d compiles against them. What is not there is Kokkos' own library, so
#             programs are linked with its functions, and nothing else, left open.
# shellcheck shell=bash disable=SC2016

# unstable_apt <folder> <apt-get or apt-cache> <arguments...>: reads unstable; <folder> keeps the lists and what is
# downloaded.
unstable_apt() {
  local apt=$1/apt tool=$2
  shift 2
  "$tool" -q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/parts" \
    -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root \
    -o Acquire::Check-Valid-Until=false "$@"  # a mirror may lag behind
}

# unstable_sources <folder>: the mirror of the machine's Debian with unstable in place of its own distribution.
unstable_sources() {
  local apt=$1/apt codename entry
  # shellcheck disable=SC1091
  codename=$(. /etc/os-release && [[ ${ID:-} == debian ]] && echo "(${VERSION_CODENAME:-sid}|sid|unstable)") ||
    fail "only Debian has the packages that are wanted; P3D_KOKKOS_SOURCE=<folder> names sources of Kokkos"
  mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/cache/archives/partial"
  entry=$(
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
      [[ ! -f $file ]] || sed -n -E "s/^deb +(\[[^]]*\] +)?([^ ]+) +$codename +.*main.*/\1\2/p" "$file"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
      [[ ! -f $file ]] || awk -v RS= -v codename="$codename" -F'\n' '{
        uri = suites = components = key = ""
        for (i = 1; i <= NF; ++i) {
          if ($i ~ /^URIs:/) { split($i, words, " "); uri = words[2] }
          if ($i ~ /^Suites:/) suites = $i " "
          if ($i ~ /^Components:/) components = $i " "
          if ($i ~ /^Signed-By: *\//) { split($i, words, " "); key = words[2] }
        }
        if (suites ~ " " codename " " && components ~ / main /) print (key == "" ? "" : "[signed-by=" key "] ") uri
      }' "$file"
    done)
  entry=$(head -n 1 <<< "$entry")
  [[ -n $entry ]] || fail "no source of Debian's $codename in /etc/apt: which mirror has unstable?"
  printf '%s %s unstable main\n' deb "$entry" deb-src "$entry" > "$apt/sources.list"
  unstable_apt "$1" apt-get update > "$1/apt-update.log" 2>&1 ||
    { tail -n 20 "$1/apt-update.log" >&2; fail "the lists of Debian's unstable could not be read"; }
}

# kokkos_packages <folder>: the headers of both into <folder>/kokkos-headers and /kokkos-kernels-headers, nvcc_wrapper
# into <folder>/bin, the versions into <folder>/versions.
kokkos_packages() {
  local work=$1 package file
  [[ ! -f $work/versions ]] || return 0
  mkdir -p "$work"
  unstable_sources "$work"
  # Not Kokkos of Trilinos: 16 has 4.5, and CUDA 13 needs 4.7.01.
  for package in libkokkos-dev kokkos libtrilinos-kokkos-kernels-dev; do
    (cd "$work" && unstable_apt "$work" apt-get download "$package/unstable") > "$work/download.log" 2>&1 ||
      { tail -n 5 "$work/download.log" >&2; fail "Debian's package $package could not be downloaded"; }
    file=$(find "$work" -maxdepth 1 -name "${package}_*.deb" | head -n 1)
    dpkg -x "$file" "$work/$package"
    rm "$file"
  done
  mkdir -p "$work/bin"
  cp "$work/kokkos/usr/bin/nvcc_wrapper" "$work/bin/"
  mv "$work/libkokkos-dev/usr/include/kokkos" "$work/kokkos-headers"
  mv "$work/libtrilinos-kokkos-kernels-dev/usr/include/trilinos" "$work/kokkos-kernels-headers"
  rm -rf "$work/kokkos" "$work/libkokkos-dev" "$work/libtrilinos-kokkos-kernels-dev"
  sed -n -E 's/^#define KOKKOS_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' "$work/kokkos-headers/KokkosCore_config.h" |
    paste -sd. > "$work/versions"
  sed -n -E 's/^#define KOKKOSKERNELS_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' \
    "$work/kokkos-kernels-headers/KokkosKernels_config.h" | paste -sd. >> "$work/versions"
}

# defines <file> <name...>: switches #define on; undefines: off.
defines() {
  local file=$1 name
  shift
  for name; do
    grep -q -E "#undef $name\b" "$file" || fail "$file: no line of $name: this Kokkos is configured in another way"
    sed -i -E "s|^.*#undef $name\b.*|#define $name|" "$file"
  done
}
undefines() {
  local file=$1 name
  shift
  for name; do sed -i -E "s|^#define $name\b.*|/* #undef $name */|" "$file"; done
}

# kokkos_of_headers <cuda|hip|sycl> <packages> <prefix>: a Kokkos for that backend out of kokkos_packages.
kokkos_of_headers() {
  local kind=$1 packages=$2 prefix=$3 config room setup arch vendor versions
  mapfile -t versions < "$packages/versions"
  case $kind in
    cuda) room=CUDA arch=(AMPERE AMPERE80) vendor=CUBLAS ;;
    hip) room=HIP arch=(VEGA VEGA90A AMD_GFX90A AMD_GPU) vendor=ROCBLAS ;;
    sycl) room=SYCL arch=(INTEL_GPU INTEL_PVC) vendor='' ;;
    *) fail "no such backend: $kind" ;;
  esac
  rm -rf "$prefix"
  mkdir -p "$prefix/include" "$prefix/bin" "$prefix/lib/cmake/Kokkos" "$prefix/lib/cmake/KokkosKernels"
  cp "$packages/bin/nvcc_wrapper" "$prefix/bin/"
  cp -r "$packages/kokkos-headers" "$prefix/include/kokkos"
  cp -r "$packages/kokkos-kernels-headers" "$prefix/include/kokkos-kernels"
  config=$prefix/include/kokkos/KokkosCore_config.h
  undefines "$config" KOKKOS_ENABLE_OPENMP KOKKOS_IMPL_BUILD_SHARED_LIBS
  defines "$config" KOKKOS_ENABLE_SERIAL KOKKOS_ENABLE_$room "${arch[@]/#/KOKKOS_ARCH_}"
  undefines "$prefix/include/kokkos/desul/atomics/Config.hpp" DESUL_ATOMICS_ENABLE_OPENMP DESUL_IMPL_BUILD_SHARED_LIBS
  defines "$prefix/include/kokkos/desul/atomics/Config.hpp" DESUL_ATOMICS_ENABLE_$room
  setup=${room/CUDA/Cuda}
  # A header of Kokkos' build: its guard, and what it includes.
  generated() {
    local name=$1 guard=$2
    shift 2
    { printf '#ifndef %s\n#define %s\n' "$guard" "$guard"
      printf '#include <%s>\n' "$@"
      echo '#endif'; } > "$prefix/include/kokkos/KokkosCore_Config_$name.hpp"
  }
  generated DeclareBackend KOKKOS_DECLARE_HPP_ decl/Kokkos_Declare_SERIAL.hpp "decl/Kokkos_Declare_$room.hpp"
  generated FwdBackend KOKKOS_FWD_HPP_ fwd/Kokkos_Fwd_SERIAL.hpp "fwd/Kokkos_Fwd_$room.hpp"
  generated SetupBackend KOKKOS_SETUP_HPP_ "setup/Kokkos_Setup_$setup.hpp"
  config=$prefix/include/kokkos-kernels/KokkosKernels_config.h
  case $kind in
    cuda) defines "$config" KOKKOSKERNELS_INST_EXECSPACE_CUDA KOKKOSKERNELS_INST_MEMSPACE_CUDASPACE ;;
    hip) defines "$config" KOKKOSKERNELS_INST_EXECSPACE_HIP KOKKOSKERNELS_INST_MEMSPACE_HIPSPACE ;;
    sycl) defines "$config" KOKKOSKERNELS_INST_EXECSPACE_SYCL KOKKOSKERNELS_INST_MEMSPACE_SYCLSPACE ;;
  esac
  [[ -z $vendor ]] || defines "$config" KOKKOSKERNELS_ENABLE_TPL_$vendor
  kokkos_config "$kind" "$prefix" "${versions[@]}"
  echo "Kokkos ${versions[0]} (headers of Debian's libkokkos-dev), Kokkos-Kernels ${versions[1]} (headers)" \
    > "$prefix/about"
}

# kokkos_config <kind> <prefix> <version> <version of Kokkos-Kernels>: what CMake finds of it. P3D_GPU_FLAGS of the
# build that looks for it: the architecture.
kokkos_config() {
  local kind=$1 prefix=$2 version=$3 kernels=$4
  {
    echo "set(Kokkos_VERSION $version)"
    echo "set(Kokkos_DEVICES \"${kind^^};SERIAL\")"
    echo 'get_filename_component(prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." REALPATH)'
    case $kind in
      cuda) echo 'find_package(CUDAToolkit REQUIRED)
set(links CUDA::cudart)
set(options --extended-lambda --expt-relaxed-constexpr ${P3D_GPU_FLAGS})' ;;
      hip) echo 'find_package(hip REQUIRED)
set(links hip::host)
set(options -x hip ${P3D_GPU_FLAGS})' ;;
      sycl) echo 'set(links "")
set(options -fsycl ${P3D_GPU_FLAGS})' ;;
    esac
    echo 'add_library(Kokkos::kokkos INTERFACE IMPORTED GLOBAL)
set_target_properties(Kokkos::kokkos PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include/kokkos
  INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:${options}>"
  INTERFACE_LINK_LIBRARIES "${links};${CMAKE_DL_LIBS}")'
  } > "$prefix/lib/cmake/Kokkos/KokkosConfig.cmake"
  {
    echo "set(KokkosKernels_VERSION $kernels)"
    echo 'get_filename_component(prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." REALPATH)
add_library(Kokkos::kokkoskernels INTERFACE IMPORTED GLOBAL)
set_target_properties(Kokkos::kokkoskernels PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include/kokkos-kernels)
target_link_libraries(Kokkos::kokkoskernels INTERFACE Kokkos::kokkos)'
  } > "$prefix/lib/cmake/KokkosKernels/KokkosKernelsConfig.cmake"
}

# kokkos_source <packages> <folder>: the sources of both into <folder>/kokkos and <folder>/kokkos-kernels. False, with a
# line of why, where they cannot be had.
kokkos_source() {
  local packages=$1 folder=$2 name tarball
  if [[ -n ${P3D_KOKKOS_SOURCE:-} ]]; then
    for name in kokkos kokkos-kernels; do
      [[ -f $P3D_KOKKOS_SOURCE/$name/CMakeLists.txt ]] || fail "P3D_KOKKOS_SOURCE: no $name in $P3D_KOKKOS_SOURCE"
    done
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -r "$P3D_KOKKOS_SOURCE/kokkos" "$P3D_KOKKOS_SOURCE/kokkos-kernels" "$folder/"
    return 0
  fi
  for name in kokkos kokkos-kernels; do
    if ! (cd "$packages" && unstable_apt "$packages" apt-get source --download-only --tar-only "$name") \
        > "$packages/source-$name.log" 2>&1; then
      note "no source package of $name: $(grep -m 1 -E '^E:' "$packages/source-$name.log" || echo "no answer")"
      return 1
    fi
    tarball=$(find "$packages" -maxdepth 1 -name "${name}_*.orig.tar.*" ! -name '*.asc' | head -n 1)
    mkdir -p "$folder/$name"
    tar -xf "$tarball" -C "$folder/$name" --strip-components=1
  done
}

# kokkos_of_source <cuda|hip|sycl> <source> <prefix> <compiler> <kokkos options...>: built and installed.
kokkos_of_source() {
  local kind=$1 source=$2 prefix=$3 compiler=$4 tpl=()
  shift 4
  rm -rf "$prefix"
  case $kind in
    cuda) tpl=(-DKokkosKernels_ENABLE_TPL_CUBLAS=ON -DKokkosKernels_ENABLE_TPL_CUSPARSE=OFF
               -DKokkosKernels_ENABLE_TPL_CUSOLVER=OFF) ;;
    hip) tpl=(-DKokkosKernels_ENABLE_TPL_ROCBLAS=ON -DKokkosKernels_ENABLE_TPL_ROCSPARSE=OFF
              -DKokkosKernels_ENABLE_TPL_ROCSOLVER=OFF) ;;
  esac
  local common=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 -DCMAKE_POSITION_INDEPENDENT_CODE=ON
                -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_CXX_COMPILER="$compiler")
  quietly "$source/kokkos.log" cmake -S "$source/kokkos" -B "$source/build-kokkos" "${common[@]}" \
    -DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_"${kind^^}"=ON "$@"
  quietly "$source/kokkos.log" cmake --build "$source/build-kokkos" -j "$JOBS" --target install
  quietly "$source/kernels.log" cmake -S "$source/kokkos-kernels" -B "$source/build-kernels" "${common[@]}" \
    -DKokkos_ROOT="$prefix" -DKokkosKernels_ADD_DEFAULT_ETI=OFF -DKokkosKernels_ENABLE_ALL_COMPONENTS=OFF \
    -DKokkosKernels_ENABLE_COMPONENT_BLAS=ON -DKokkosKernels_ENABLE_TPL_BLAS=ON "${tpl[@]}"
  quietly "$source/kernels.log" cmake --build "$source/build-kernels" -j "$JOBS" --target install
  echo "Kokkos $(sed -n -E 's/^ *set\(PACKAGE_VERSION "(.*)"\)/\1/p' \
    "$prefix/lib/cmake/Kokkos/KokkosConfigVersion.cmake"), built from source" > "$prefix/about"
}
