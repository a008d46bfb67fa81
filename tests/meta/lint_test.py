# SPDX-License-Identifier: Apache-2.0
"""Plants violations in a copy of the sources; every lint rule must find each of its own, and name the place.

A message counts only when it is not there without the plant, so this test means something even in a tree that is not
clean.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

# (rule, file, text planted at its end, what the message must contain). A file that does not exist is made.
PLANTS = [
    ("rooms", "include/p3d/base/planted.hpp", "#include <p3d/config/config.hpp>\n",
     "room base includes p3d/config/config.hpp of room config"),
    ("rooms", "src/schedule/planted.cpp", "#include <p3d/device/view.hpp>\n",
     "room schedule includes p3d/device/view.hpp"),
    ("rooms", "src/kernels/planted.cpp", "  #  include <p3d/comm/wait.hpp>\n",
     "room kernels includes p3d/comm/wait.hpp"),
    ("rooms", "src/model/planted.cpp", "#include <mpi.h>\n", "includes <mpi.h> (mpi)"),
    ("rooms", "src/config/planted.cpp", "#include <Kokkos_Core.hpp>\n", "includes <Kokkos_Core.hpp> (kokkos)"),
    ("rooms", "src/comm/planted.cpp", "#include <Kokkos_Core.hpp>\n", "includes <Kokkos_Core.hpp> (kokkos)"),
    ("rooms", "src/run/planted.cpp", "#include <toml++/toml.h>\n", "includes <toml++/toml.h> (toml)"),
    ("rooms", "src/run/planted.cpp", "#include <CLI/CLI.hpp>\n", "includes <CLI/CLI.hpp> (cli11)"),
    ("rooms", "src/base/planted.cpp", "#include <boost/any.hpp>\n", "includes <boost/any.hpp> (unknown)"),
    ("rooms", "src/kitchen/planted.cpp", "#include <vector>\n", "in no room of rooms.txt"),
    ("rooms", "src/layout/planted.cpp", '#include "base/planted_private.hpp"\n', "private header of room base"),
    ("rooms", "include/p3d/base/circle_a.hpp", "#include <p3d/base/circle_b.hpp>\n", "in a circle"),
    ("rooms", "src/schedule/CMakeLists.txt", "p3d_add_room(planted SOURCES a.cpp\n  USES base device LINK fmt::fmt)\n",
     "room schedule USES device"),
    ("labels", "src/kernels/planted.cpp", "void f() { Kokkos::parallel_for(10, body); }\n",
     ":1: a kernel needs a label"),
    ("labels", "src/kernels/planted.cpp", 'void f() { Kokkos::parallel_reduce("sum", 10, body, r); }\n',
     "a kernel needs a label"),
    ("labels", "src/kernels/planted.cpp", 'void f() { Kokkos::parallel_scan("p3d::model::f", 10, body); }\n',
     'label "p3d::kernels::'),
    ("labels", "src/kernels/planted.cpp", 'void f() { Kokkos::parallel_for("p3d::kernels::f", 10, body); }\n',
     "a kernel goes through device::launch_kernel"),
    ("labels", "src/engine/planted.cpp", "void f() { Kokkos::deep_copy(to, from); }\n",
     ":1: a copy without an execution instance waits for the whole device: to"),
    ("labels", "src/model/planted.cpp", 'device::Owned1<double> a("weights", 10);\n', "an allocation needs a label"),
    ("labels", "src/model/planted.cpp", 'Kokkos::View<double*, Space> a(Kokkos::view_alloc("w", exec), 10);\n',
     "an allocation needs a label"),
    ("labels", "src/model/planted.cpp",
     "auto p = std::make_shared<V>(Kokkos::view_alloc(Kokkos::WithoutInitializing), 10);\n",
     "an allocation needs a label"),
    ("labels", "src/model/planted.cpp", 'void f(E exec) { device::fence(exec, "p3d::model::"); }\n',
     "fence() needs a label"),
    ("labels", "src/model/planted.cpp", "void f(E exec) { exec.fence(); }\n", "use device::fence"),
    ("labels", "src/model/planted.cpp", 'void f(E exec) { device::fence(exec, "here"); }\n', "fence() needs a label"),
    ("labels", "src/model/planted.cpp", 'void f() { Kokkos::Profiling::pushRegion("step"); }\n',
     "a region needs a label"),
    ("labels", "src/model/planted.cpp", 'void pass(std::string const& label, int n);\nvoid f() { pass("mine", 3); }\n',
     ":2: pass() needs a label"),
    ("labels", "src/model/planted.cpp", 'auto a = device::large_array<double>("mine", 3);\n',
     "large_array() needs a label"),
    ("axes", "src/engine/planted.cpp", "int f(C c) { return c.dp * c.tp * c.pp; }\n", ":1: names the axes dp, pp, tp"),
    ("axes", "src/run/planted.cpp", 'auto s = fmt::format("dp {}, tp {}, {{}}; cp {}", a, b, c);\n',
     ":1: names the axes cp, dp, tp"),
    ("axes", "src/plan/planted.cpp", "a = c.tp;  // of tp, pp and dp\nb = c.pp;\nd = c.dp;\n",
     ":1: names the axes dp, pp, tp"),
    ("doors", "src/io/planted.cpp", "void f() { H5Aread(a, type, &out); }\n", ":1: H5Aread: use io::Hdf5File"),
    ("doors", "src/io/seal.cpp", "void f() { H5Dread (set, type, s, s, p, out); }\n", ": use io::Hdf5File"),
    ("doors", "src/run/planted.cpp", "auto f = H5Fopen(p, H5F_ACC_RDONLY, d);\n", ":1: H5F_ACC_RDONLY: use"),
    ("doors", "src/run/planted.cpp", "auto h = Kokkos::create_mirror_view(x);\n", ":1: create_mirror_view: use"),
    ("third_parties", "src/base/planted_join.cpp",
     "#include <fmt/format.h>\nauto s = fmt::format(f, fmt::join(v, w));\n",
     ":2: fmt::join needs #include <fmt/ranges.h>"),
    ("third_parties", "tests/unit/planted_join.cpp", "// #include <fmt/ranges.h>\nauto j = fmt::join(v, w);\n",
     ":2: fmt::join needs #include <fmt/ranges.h>"),
    ("lengths", "src/base/planted.cpp", "\n" * 601, ": 601 lines"),
    ("lengths", "tests/app/planted.py", "\n" + "#" * 121 + "\n", ":2: 121 columns"),
    ("lengths", "tests/app/planted.sh", "#" * 121 + "\n", ":1: 121 columns"),
    ("lengths", "cmake/planted.cmake", "#" * 121, ":1: 121 columns"),
    ("lengths", "src/io/CMakeLists.txt", "#" * 121 + "\n", ": 121 columns"),
    ("lengths", "scripts/planted_columns", "#" * 121 + "\n", ":1: 121 columns"),
    ("lengths", ".ci/run", "#" * 121 + "\n", ": 121 columns"),
    ("format", "src/comm/planted_format.cpp", "int  two( int a ){return a;}\n", ":1: not formatted"),
    ("licence", "src/base/planted_licence.cpp", "int f();\n", ":1: the first line says"),
    ("licence", "scripts/planted_licence.sh", "#!/bin/sh\necho\n", ":1: the first line says"),
    ("comments", "src/kernels/lone_planted.cpp", "/// Of one stage.\nint bytes();\n", ":1: the comment leans"),
    ("comments", "src/kernels/lone_planted.cpp", "int a = 0;  ///< of the gates\n", ":1: the comment leans"),
    ("comments", "src/kernels/lone_planted.cpp", "int a = 0;\n\n// To take it anew.\nvoid f();\n",
     ":3: the comment leans"),
    ("comments", "include/p3d/kernels/lone_planted.hpp", "/// What is copied, then\n/// sent.\nint f();\n",
     ":1: the comment leans"),
    ("comments", "include/p3d/kernels/lone_planted.hpp", "/// Where it lies; first, the head.\nint f();\n",
     ":1: the comment leans"),
    ("comments", "src/kernels/lone_planted.cpp", "\n" * 151, ":1: over 150 lines without"),
    ("comments", "src/kernels/lone_planted.cpp", "// SPDX\n// One line.\n" + "\n" * 150, ":1: over 150 lines without"),
    ("words", "scripts/planted.sh", "wget https" + "://somewhere.test/file\n", ":1: address"),
    ("words", ".ci/planted", "pip --index pypi" + ".somewhere.org\n", "host"),
    ("words", "src/device/planted.cpp", "void f() { cuda" + "Malloc(&p, 1); }\n", "one vendor's name"),
    ("words", "src/comm/planted.cpp", "bool b = MPIX_Query_" + "cuda_support();\n", "one vendor's name"),
    ("words", "src/linalg/planted.cpp", "void f() { roc" + "blas_sgemm(h); }\n", "one vendor's name"),
    ("words", "src/device/planted.cpp", "using E = Kokkos::Cu" + "da;\n" + "using F = Kokkos::Cuda;\n",
     "one vendor's name"),
    ("blocking", "src/comm/planted.cpp", "void f() { MPI_Barrier(comm); }\n", "MPI_Barrier may block"),
    ("blocking", "src/run/planted.cpp", "void f() { check(MPI_Comm_dup(a, &b)); }\n", "MPI_Comm_dup may block"),
    ("blocking", "src/comm/planted.cpp", "int f() { return PMPI_Wait(&r, s); }\n", "MPI_Wait may block"),
    ("blocking", "src/comm/planted.cpp", "void f() { MPI_Init(&argc, &argv); }\n", "MPI_Init may block"),
    ("blocking", "src/comm/planted.cpp",
     'void f() { blocking("MPI_Bcast", "world", [&] { return MPI_Reduce(a); }); }\n', 'comm::blocking("MPI_Reduce"'),
    ("blocking", "src/comm/planted.cpp", 'void f() { blocking("MPI_Bcast", "w", [&] { return 0; }); MPI_Bcast(a); }\n',
     "MPI_Bcast may block"),
    ("blocking", "src/comm/planted.cpp",
     'void f() { { BlockingCall const here("MPI_Bcast", "w"); } MPI_Bcast(a); }\n', "MPI_Bcast may block"),
]
# Files that some plants lean on; harmless by themselves.
SUPPORT = {"src/base/planted_private.hpp": "#pragma once\n",
           "include/p3d/base/circle_b.hpp": "#pragma once\n#include <p3d/base/circle_a.hpp>\n"}
# What must not be taken for a violation.
HARMLESS = [
    ("rooms", "src/base/planted.cpp", "// #include <mpi.h>\n/*\n#include <mpi.h>\n*/\n#include <sys/types.h>\n"),
    ("labels", "src/kernels/planted.cpp", 'void f() { launch_kernel("p3d::kernels::f", range, body); }\n'
     "void g() { Kokkos::parallel_for(Kokkos::TeamThreadRange(team, 3), body); }\n"
     "// Kokkos::parallel_for(10, body);\n"
     'void pass(std::string const& label) { device::launch_kernel(label, range, body); }\n'
     'void h() { pass("p3d::kernels::h"); }\n'
     'device::Owned1<int> new_array(std::string const& label);\nauto k = new_array("p3d::kernels::k");\n'
     "auto m = Kokkos::create_mirror_view(Kokkos::view_alloc(Kokkos::WithoutInitializing), v);\n"
     'void j(char const* part) { device::fence(exec, std::string("p3d::kernels::") + part); }\n'
     "device::Owned1<double> empty;\nvoid i(double* p) { device::View1<double> v(p, 10); }\n"),
    ("comments", "src/kernels/lone_8_planted.cpp", "/// Bytes of one stage.\n/// Of them, half.\nint bytes();\n"
     "int c = 1;  // of one stage\nint a = 0;  ///< factor of the gates, by token,\n            ///< of all tokens\n"
     "// Of two equal ones, the first is taken.\nint b;\n// Offset in bytes.\nint c;\n"
     'char const* d = "// To be";\n'),
    ("comments", "src/kernels/lone_9_planted.cpp", "// SPDX\n// A paragraph that\n// says why.\n" + "\n" * 150),
    ("comments", "include/p3d/kernels/lone_10_planted.hpp", "// SPDX\n#pragma once\n// Two\n// lines.\n" + "\n" * 150),
    ("doors", "src/io/planted.cpp", "// H5Aread(a, type, &out) stands behind a door\n"),
    ("third_parties", "src/base/planted.cpp", "#include <fmt/ranges.h>\n// fmt::join\nauto j = fmt::join(v, w);\n"),
    ("blocking", "src/comm/planted.cpp", "void f() { MPI_Ibarrier(comm, &r); MPI_Test(&r, &done, s); }\n"
     'void g() { check(blocking("MPI_Bcast", name, [&] { return MPI_Bcast(a); }), "MPI_Bcast (it blocks)"); }\n'
     'void h() { BlockingCall const here("MPI_Bcast", "w"); check(MPI_Bcast(a)); }\n// MPI_Barrier(comm);\n'),
    ("lengths", "scripts/planted.sh", "# " + "\u00b5" * 118 + "\n"),
    ("words", "src/base/planted.cpp", "// https" + "://arxiv.org/abs/1706.03762\n"),
]


PLANTED_IN = {plant[1] for plant in PLANTS}


def is_read(place):
    """Whether a rule reads the file for others (declarations of rooms config and device, lists of sources), is it, or
    has plants."""
    return (place.parts[:2] == ("tests", "lint") and place.suffix != ".pyc" or
            place.parts[2:3] in (("config",), ("device",)) or place.name == "CMakeLists.txt" or
            str(place) in PLANTED_IN)


class Lint(unittest.TestCase):
    root = None
    planted = 0  # files so far
    clean = {}   # what each rule says of the tree without plants

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="p3d-lint-")
        self.copy = pathlib.Path(self.scratch.name, "p3d")
        # The rules, the declarations that they read, and files to plant in. Every rule would read a whole tree thrice.
        for name in ("include", "src", "scripts", ".ci", "tests", "cmake"):
            for path in sorted((self.root / name).rglob("*")):
                place = path.relative_to(self.root)
                if path.is_file() and is_read(place):
                    (self.copy / place).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, self.copy / place)
        shutil.copy(self.root / ".clang-format", self.copy)
        for name, text in SUPPORT.items():
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            (self.copy / name).write_text(text)

    def tearDown(self):
        self.scratch.cleanup()

    def lint(self, rule):
        script = self.copy / "tests/lint" / f"{rule}.py"
        done = subprocess.run([sys.executable, "-B", script, "--root", self.copy], capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest(done.stdout)
        self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(done.returncode == 0, lines[-1].endswith(": clean"), done.stdout)
        return set(lines[:-1])

    def plant(self, file, text):
        """Adds the text to the file, under a name of its own when the file is new; returns that name."""
        path = self.copy / file
        if not path.exists() and "planted." in file:
            self.planted += 1
            file = file.replace("planted.", f"planted_{self.planted}.")
            path = self.copy / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(text)
        return file

    def added(self, rule, plants):
        """The names of the planted files, and the messages that all the plants together add to a tree without any."""
        if rule not in self.clean:
            self.clean[rule] = self.lint(rule)
        before = {name: (self.copy / name).read_bytes() for name, _ in plants if (self.copy / name).exists()}
        names = [self.plant(file, text) for file, text in plants]
        messages = self.lint(rule) - self.clean[rule]
        for name in names:
            if name in before:
                (self.copy / name).write_bytes(before[name])
            else:
                (self.copy / name).unlink(missing_ok=True)  # two plants may share a file
        return names, messages

    def test_every_plant_is_found(self):
        for rule in sorted({plant[0] for plant in PLANTS}):
            plants = [plant[1:] for plant in PLANTS if plant[0] == rule]
            with self.subTest(rule=rule):
                names, messages = self.added(rule, [(file, text) for file, text, _ in plants])
                for name, (file, text, message) in zip(names, plants):
                    with self.subTest(rule=rule, file=file, text=text[:60]):
                        mine = [line for line in messages if name in line]
                        self.assertTrue(any(message in line for line in mine), f"expected '{message}' in {mine}")

    def test_harmless_lines_are_let_pass(self):
        for rule in sorted({plant[0] for plant in HARMLESS}):
            with self.subTest(rule=rule):
                self.assertEqual(self.added(rule, [plant[1:] for plant in HARMLESS if plant[0] == rule])[1], set())

    def test_a_table_with_a_cycle_is_refused(self):
        table = self.copy / "tests/lint/rooms.txt"
        table.write_text(table.read_text().replace("base        :      ", "base        : config"))
        done = subprocess.run([sys.executable, "-B", self.copy / "tests/lint/rooms.py", "--root", self.copy],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("room base names config, which does not stand above it", done.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    Lint.root = parser.parse_args().root
    unittest.main(argv=sys.argv[:1])
