"""Installs a build of p3d and links a small outside project against it (run by ctest, see CMakeLists.txt here)."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def run(*command):
    """The output of a command; on failure prints it and ends the test."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "generator", "compiler", "build", "consumer", "version", "sanitize", "launcher"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p3d-install-") as folder:
        prefix, build = pathlib.Path(folder, "prefix"), pathlib.Path(folder, "build")
        run(args.cmake, "--install", args.build, "--prefix", prefix)
        flags = f"-fsanitize={args.sanitize}" if args.sanitize else ""
        configured = run(args.cmake, "-S", args.consumer, "-B", build, "-G", args.generator,
                         f"-DCMAKE_CXX_COMPILER={args.compiler}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={args.launcher}",
                         f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_FLAGS={flags}")
        if "Warning" in configured:
            sys.exit(f"find_package(p3d) warns:\n{configured}")
        commands = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
        for flag in ("-march=native", "-Wall", "-Werror"):
            if any(flag in entry["command"] for entry in commands):
                sys.exit(f"{flag} of p3d's own build reached the outside project:\n{commands}")
        run(args.cmake, "--build", build)
        said = run(build / "consumer")
        if not said.startswith(f"p3d {args.version} "):
            sys.exit(f"expected p3d {args.version}, found: {said}")
        program = prefix / "bin" / "p3d"
        if program.exists():
            said = run(program, "--version")
            if args.version not in said:
                sys.exit(f"expected version {args.version} from the installed program, found: {said}")


main()
