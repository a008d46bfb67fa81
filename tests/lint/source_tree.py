# SPDX-License-Identifier: Apache-2.0
"""What the lint rules share: the files of the project, C++ text without comments, calls and their arguments."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

CPP = {".hpp", ".cpp", ".h"}
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
OPEN, CLOSE = "([{", ")]}"
CACHES = {"__pycache__", ".spack-env"}  # the second of a concretized environment in spack/environments


def files(root, folders, suffixes=None):
    """Files under root's folders, sorted; a folder may also be one file. Build outputs and caches are left out."""
    found = []
    for folder in folders:
        top = root / folder
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and not CACHES.intersection(path.parts) and (suffixes is None or path.suffix in suffixes):
                found.append(path)
    return found


def code(text):
    """C++ without comments; strings stay, and so do line numbers."""
    def blank(match):
        piece = match.group(0)
        return piece if piece[0] in "\"'" else re.sub(r"[^\n]", " ", piece)
    # A digit separator (1'000) is no character literal.
    return COMMENT_OR_STRING.sub(blank, re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", " ", text))


def room_of(root, path):
    """The room a file of include/p3d or src belongs to, or None."""
    parts = path.relative_to(root).parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ("include", "p3d") and len(parts) > 3:
        return parts[2]
    return None


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def arguments(text, open_position):
    """The arguments of a call whose '(' (or '{') stands at open_position, split at commas of the outermost level.

    Angle brackets count when they look like those of a template, so View<a, b> is one piece."""
    depth, angle, start, found, i = 0, 0, open_position + 1, [], open_position
    while i < len(text):
        c = text[i]
        if c in "\"'":
            match = COMMENT_OR_STRING.match(text, i)
            i = match.end() if match else i + 1
            continue
        if c in OPEN:
            depth += 1
        elif c in CLOSE:
            depth -= 1
            if depth == 0:
                last = text[start:i].strip()
                if last or found:
                    found.append(last)
                return found
        elif (c == "<" and depth == 1 and (text[i - 1].isalnum() or text[i - 1] == "_")
              and not text[i + 1:i + 2].isspace()):
            angle += 1
        elif c == ">" and angle and text[i - 1] not in "-=":
            angle -= 1
        elif c == "," and depth == 1 and angle == 0:
            found.append(text[start:i].strip())
            start = i + 1
        i += 1
    return found


def llvm_tool(name, version):
    """The path of clang-format or clang-tidy of that version, whose words are what counts; without it the rule is
    skipped."""
    for candidate in (f"{name}-{version}", name):
        path = shutil.which(candidate)
        if path:
            text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            if (found := re.search(r"version (\d+)\.", text)) and int(found.group(1)) == version:
                return path
    print(f"skipped: {name} {version} is not installed (apt-get install {name}-{version})")
    sys.exit(77)


def main(rule):
    """Runs rule(root) -> list of messages; exit code 1 when there is any."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root.resolve()
    messages = rule(root)
    for message in messages:
        print(message)
    name = pathlib.Path(sys.argv[0]).name
    print(f"{name}: {len(messages)} violation(s)" if messages else f"{name}: clean")
    sys.exit(1 if messages else 0)
