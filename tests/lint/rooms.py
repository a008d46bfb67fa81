# SPDX-License-Identifier: Apache-2.0
"""Reads every #include of include/ and src/ and fails when a room reaches outside its row of rooms.txt.

Also: a header of another room that is private (in src/), a third party that the room may not use, a room missing from
the table, CMake's USES beyond the row, and cycles between files.
"""
import re

import source_tree

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
THIRD_PARTIES = [  # in order: the first that matches
    ("mpi", r"mpi\.h$|mpi-ext\.h$"),
    ("kokkoskernels", r"Kokkos(Blas|Batched|Sparse|Kernels)"),
    ("kokkos", r"Kokkos_|Kokkos\w*\.hpp$|impl/Kokkos"),
    ("toml", r"toml\+\+/"),
    ("cli11", r"CLI/"),
    ("fmt", r"fmt/"),
    ("random123", r"Random123/"),
    ("xxhash", r"xxhash\.h$"),
    ("onednn", r"(oneapi/dnnl/)?dnnl"),
    ("nccl", r"nccl\.h$|rccl/"),
    ("cublas", r"cublas"),
    ("cudnn", r"cudnn"),
    ("rocblas", r"rocblas/"),
    ("onemkl", r"oneapi/mkl|sycl/"),
    ("gpu_runtime", r"cuda_runtime|^cuda\.h$|hip/hip_runtime"),
    ("blas", r"cblas\.h$|openblas"),
    ("hdf5", r"hdf5|H5"),
    ("json", r"nlohmann/"),
    ("pcre2", r"pcre2\.h$"),
    ("sentencepiece", r"sentencepiece_"),
    ("utf8proc", r"utf8proc\.h$"),
    ("zlib", r"zlib\.h$"),
    ("zstd", r"zstd\.h$"),
]
# The C++ library, the compiler's own header, and the POSIX headers for what it has no words for.
STANDARD = re.compile(r"[a-z_0-9]+$|(immintrin|cpuid)\.h$")
POSIX = re.compile(r"(unistd|fcntl|sched|dlfcn|time|signal|poll|pthread|execinfo|ucontext|sys/\w+|linux/\w+)\.h$")
SANITIZERS = re.compile(r"sanitizer/\w+\.h$")


def read_table(path):
    rows = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0]
        if not line.strip():
            continue
        room, rooms, third = (field.strip() for field in line.split(":"))
        allowed = set(rows) if rooms == "*" else set(rooms.split())
        for other in allowed - set(rows):
            raise SystemExit(f"{path}: room {room} names {other}, which does not stand above it")
        rows[room] = (allowed | {room}, set(third.split()))
    return rows


def third_party(name):
    for party, pattern in THIRD_PARTIES:
        if re.match(pattern, name):
            return party
    known = STANDARD.match(name) or POSIX.match(name) or SANITIZERS.match(name)
    return None if known else "unknown"


def locate(root, path, quote, name):
    """The project's file that an #include means, or None."""
    places = [root / "include", root / "src"]
    if quote == '"':
        places.insert(0, path.parent)
    for place in places:
        if (place / name).is_file():
            return (place / name).resolve()
    return None


def cycles(graph):
    """Messages for cycles between files (depth first; each cycle once)."""
    state, found = {}, []

    def visit(node, way):
        state[node] = "open"
        for target in graph.get(node, ()):
            if state.get(target) == "open":
                circle = way[way.index(target):] if target in way else [node]
                found.append("files include each other in a circle: " + " -> ".join(circle + [target]))
            elif target not in state:
                visit(target, way + [target])
        state[node] = "done"

    for node in sorted(graph):
        if node not in state:
            visit(node, [node])
    return found


def check_cmake(root, rows):
    found = []
    for path in source_tree.files(root, ["src"]):
        if path.name != "CMakeLists.txt" or (room := source_tree.room_of(root, path)) not in rows:
            continue
        for uses in re.finditer(r"p3d_add_room\([^)]*?\bUSES\b([^)]*?)(?:\bLINK\b[^)]*)?\)", path.read_text()):
            for used in set(uses.group(1).split()) - rows[room][0]:
                found.append(f"{path.relative_to(root)}: room {room} USES {used}, which is not in its row of rooms.txt")
    return found


def check(root):
    rows = read_table(root / "tests/lint/rooms.txt")
    found, graph = [], {}
    for path in source_tree.files(root, ["include", "src"], source_tree.CPP):
        here, room = str(path.relative_to(root)), source_tree.room_of(root, path)
        if room not in rows:
            found.append(f"{here}: in no room of rooms.txt (rooms: {', '.join(rows)})")
            continue
        allowed, third = rows[room]
        text = source_tree.code(path.read_text())
        for match in INCLUDE.finditer(text):
            quote, name = match.groups()
            where = f"{here}:{source_tree.line_of(text, match.start(1))}"
            target = locate(root, path, quote, name)
            generated = re.match(r"p3d/(\w+)/", name)
            if target is None and not generated:
                party = third_party(name)
                if party is not None and party not in third:
                    may = ", ".join(sorted(third)) or "none"
                    found.append(f"{where}: room {room} includes <{name}> ({party}); third parties it may use: {may}")
                continue
            other = generated.group(1) if target is None else source_tree.room_of(root, target)
            if target is not None:
                graph.setdefault(here, []).append(str(target.relative_to(root)))
            if other not in allowed:
                may = ", ".join(r for r in rows if r in allowed and r != room) or "none"
                found.append(f"{where}: room {room} includes {name} of room {other}; rooms it may use: {may}")
            elif (target is not None and target.is_relative_to(root / "src")
                  and (other != room or here.startswith("include"))):
                found.append(f"{where}: {name} is a private header of room {other}; use include/p3d/{other}/")
    return found + cycles(graph) + check_cmake(root, rows)


if __name__ == "__main__":
    source_tree.main(check)
