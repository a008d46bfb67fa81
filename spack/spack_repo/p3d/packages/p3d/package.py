# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage

from spack.package import *


class P3d(CMakePackage, CudaPackage, ROCmPackage):
    """Trains transformer language models on many ranks at once, with data, tensor and pipeline
    parallelism: one C++20 program on Kokkos and MPI."""

    homepage = "https://example.org/p3d"
    git = "https://example.org/p3d.git"

    test_requires_compiler = False

    license("Apache-2.0")

    # From a checkout: spack develop --path <checkout> p3d@main
    version("main", branch="main")

    variant("openmp", default=True, when="~cuda~rocm~sycl",
            description="Threads on the host; without it one core a rank")
    variant("onednn", default=True, when="~cuda~rocm~sycl target=x86_64:",
            description="bf16 GEMMs by oneDNN, on processors with AVX512-BF16 or AMX")
    variant("nccl", default=True, when="+cuda", description="Collectives on GPU memory by NCCL")
    variant("rccl", default=True, when="+rocm", description="Collectives on GPU memory by RCCL")
    variant("sycl", default=False, description="GPUs of Intel")
    variant("tests", default=False, description="Build the tests")
    variant("shared", default=True, description="Build libp3d as a shared library")
    # Kokkos is built for one GPU at a time.
    variant("cuda_arch", default="none", values=("none",) + CudaPackage.cuda_arch_values, multi=False, sticky=True,
            when="+cuda", description="CUDA architecture")
    variant("amdgpu_target", default="none", values=("none",) + ROCmPackage.amdgpu_targets, multi=False, sticky=True,
            when="+rocm", description="AMD GPU architecture")
    variant("intel_gpu_arch", default="none", values=("none", "intel_pvc", "intel_dg2"), multi=False,
            sticky=True, when="+sycl", description="Intel GPU architecture")
    conflicts("+cuda", when="+rocm", msg="Kokkos has one GPU backend at a time")
    conflicts("+cuda", when="+sycl", msg="Kokkos has one GPU backend at a time")
    conflicts("+rocm", when="+sycl", msg="Kokkos has one GPU backend at a time")
    conflicts("+cuda", when="cuda_arch=none", msg="name the GPU, for example cuda_arch=90")
    conflicts("+rocm", when="amdgpu_target=none", msg="name the GPU, for example amdgpu_target=gfx90a")
    conflicts("+sycl", when="intel_gpu_arch=none", msg="name the GPU, for example intel_gpu_arch=intel_pvc")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    generator("ninja", "make", default="ninja")

    depends_on("mpi@3:")
    depends_on("hdf5@1.10:+mpi")
    depends_on("blas")
    depends_on("fmt@8:")
    depends_on("tomlplusplus@3:")
    depends_on("cli11@2:")
    depends_on("random123")
    depends_on("xxhash@0.8:")
    depends_on("nlohmann-json@3.9:")
    depends_on("pcre2@10.30:")
    depends_on("utf8proc@2.1:")
    depends_on("zlib-api")
    depends_on("zstd@1.3:")
    depends_on("sentencepiece")
    depends_on("onednn@2: cpu_runtime=omp", when="+onednn")
    depends_on("nccl@2.14:", when="+nccl")
    depends_on("rccl@5.4:", when="+rccl")
    depends_on("googletest@1.10:", when="+tests")
    depends_on("python@3.8:", type="build", when="+tests")

    # Kokkos and Kokkos-Kernels of one version; the recipe of the latter says so as well.
    depends_on("kokkos@3.7:5+serial")
    depends_on("kokkos-kernels@3.7:5+blas")
    depends_on("kokkos+pic", when="+shared")
    depends_on("kokkos cxxstd=20", when="^kokkos@4:")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("kokkos-kernels+openmp", when="+openmp")
    depends_on("kokkos~openmp", when="~openmp")
    # GPUs: from 4.3 on p3d chooses each rank's GPU itself.
    with when("+cuda"):
        depends_on("kokkos@4.3:+cuda+wrapper")
        depends_on("kokkos@4.7.01:", when="^cuda@13:")
        depends_on("kokkos+cuda_lambda", when="^kokkos@:4")
        depends_on("kokkos-kernels+cuda+cublas")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"kokkos cuda_arch={arch}", when=f"cuda_arch={arch}")
            depends_on(f"kokkos-kernels cuda_arch={arch}", when=f"cuda_arch={arch}")
    with when("+rocm"):
        depends_on("kokkos@4.3:+rocm")
        depends_on("kokkos-kernels+rocblas")
        for target in ROCmPackage.amdgpu_targets:
            depends_on(f"kokkos amdgpu_target={target}", when=f"amdgpu_target={target}")

    with when("+sycl"):
        depends_on("kokkos@4.3:+sycl")
        depends_on("intel-oneapi-mkl@2024:")
        requires("%oneapi", msg="Kokkos' SYCL is compiled by Intel's icpx")
        for arch in ("intel_pvc", "intel_dg2"):
            depends_on(f"kokkos intel_gpu_arch={arch}", when=f"intel_gpu_arch={arch}")

    # Threads of the BLAS follow those of Kokkos; p3d sets their number.
    requires("^openblas threads=openmp", when="+openmp ^[virtuals=blas] openblas")

    def cmake_args(self):
        args = [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("P3D_BUILD_TESTS", "tests"),
            self.define("P3D_CHECK_HEADERS", False),
            self.define("P3D_WITH_ONEDNN", self.spec.satisfies("+onednn")),
            self.define("P3D_NCCL", self.spec.satisfies("+nccl") or self.spec.satisfies("+rccl")),
            self.define("CMAKE_UNITY_BUILD", self.spec.satisfies("~cuda~rocm~sycl")),
            # ccache sees neither the processor nor the folders that Spack's compiler wrapper adds, and would hand out
            # objects of another target. Where Spack is to use it (config:ccache), its wrapper does.
            self.define("CMAKE_CXX_COMPILER_LAUNCHER", ""),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CXX_COMPILER", self["kokkos"].kokkos_cxx))
        elif self.spec.satisfies("+rocm"):
            args.append(self.define("CMAKE_CXX_COMPILER", self.spec["hip"].hipcc))
        return args

    def test_version(self):
        """the program starts and names what it was built with"""
        p3d = which(self.prefix.bin.p3d, required=True)
        out = p3d("--version", output=str.split, error=str.split)
        assert "Kokkos" in out, out

    def test_train(self):
        """three steps of a tiny model, one rank, without a launcher"""
        p3d = which(self.prefix.bin.p3d, required=True)
        with open("smoke.toml", "w", encoding="utf-8") as file:
            file.write(
                '[run]\nname = "smoke"\nsteps = 3\nlog_every = 1\neval_batches = 0\noutput_dir = "smoke"\n'
                "[model]\nvocab_size = 64\nhidden = 16\nlayers = 2\nheads = 2\nffn = 32\nseq_len = 16\n"
                "[batch]\nmicro = 1\nglobal = 4\n"
                '[data]\nformat = "synthetic"\n'
            )
        out = p3d("smoke.toml", output=str.split, error=str.split)
        assert "Finished 3 step" in out, out
        with open("smoke/metrics.csv", encoding="utf-8") as file:
            assert len(file.readlines()) == 4, "a header and three steps"
