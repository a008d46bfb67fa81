# SPDX-License-Identifier: Apache-2.0
"""Every kernel, View allocation, fence and region in src/ and include/ carries a label "p3d::<its room>::...", so that
any Kokkos tool shows where the time goes. Kernels go through device::launch_kernel, so that none is passed through
constant memory; copies take an execution instance, since without one they wait for the whole device, twice.

A function that has a parameter called `label` and hands it on is fine; then its callers are checked instead.
"""
import re

import source_tree

KERNEL = re.compile(r"\bparallel_(?:for|reduce|scan)\s*(\()")
ALLOCATION = re.compile(r"\b(?:Owned[12]|View)\s*<[^;(){}]*>\s*(?:\w+\s*)?([({])")
VIEW_ALLOC = re.compile(r"(create_mirror\w*\s*\(\s*)?\b(?:Kokkos::)?view_alloc\s*(\()")
NESTED = re.compile(r"(?:Kokkos::)?(?:TeamThread|ThreadVector|TeamVector)(?:M?D?)Range\b")
FENCE = re.compile(r"(?:\.|->|Kokkos::|\bfence_)fence\s*\(")
REGION = re.compile(r"\b(?:pushRegion|ScopedRegion(?:\s+\w+)?|kokkos_malloc(?:<[^>]*>)?|markEvent)\s*([({])")
FORWARDER = re.compile(r"\b([a-z]\w*)\s*(?:<[\w:, ]*>)?\s*(\()")
LABEL_PARAMETER = re.compile(r"(?:std::string(?:_view)?|char)\s*(?:const)?\s*[&*]?\s*label$"
                             r"|(?:const\s+)(?:std::string(?:_view)?|char)\s*[&*]?\s*label$")
FENCE_WRAPPER = "include/p3d/device/compat.hpp"  # the one place that calls Kokkos' own fence
LAUNCHER = "include/p3d/device/launch.hpp"
OWN_LAUNCHES = {"linalg"}  # rooms whose few kernels carry a handful of numbers
COPY = re.compile(r"\bdeep_copy\s*(\()")
INSTANCE = re.compile(r"(?:\w+(?:\.|->))*exec_?$")
# Where nothing runs yet, or a checkpoint wants all to have ended.
COPIES_THAT_WAIT = {"include/p3d/device/guard.hpp", "include/p3d/device/memory.hpp", "src/engine/checkpoint_parts.cpp",
                    "src/model/attention.hpp", "src/run/gpu_aware.cpp"}


def is_parameter(argument):
    """True for the declaration of a parameter called `label`."""
    return LABEL_PARAMETER.search(re.sub(r"\[\[\w+\]\]\s*", "", argument)) is not None


def is_label(argument, room):
    """True for a literal of this room (a part may be added to it), or for a label handed on."""
    return (re.search(rf'"p3d::{room}::(?:[\w:. -]+"|"\)?\s*\+)', argument) is not None
            or re.fullmatch(r"(\w+\.)?label(_|\(\))?(\.c_str\(\))?( \+ \"[\w:. -]+\")?", argument) is not None)


def forwarders(texts):
    """name -> index of the parameter `label`, for functions (not constructors) that take one."""
    found = {}
    for text in texts.values():
        for match in FORWARDER.finditer(text):
            for index, parameter in enumerate(source_tree.arguments(text, match.start(2))):
                if is_parameter(parameter):
                    found[match.group(1)] = index
    return found


def check(root):
    texts = {path: source_tree.code(path.read_text())
             for path in source_tree.files(root, ["include", "src"], source_tree.CPP)}
    found, handed_on = [], forwarders(texts)

    for path, text in texts.items():
        here, room = str(path.relative_to(root)), source_tree.room_of(root, path)

        def wrong(position, what, argument):
            shown = " ".join(argument.split())[:60]
            found.append(f'{here}:{source_tree.line_of(text, position)}: {what} needs a label "p3d::{room}::...", '
                         f"found: {shown}")

        for match in KERNEL.finditer(text):
            given = source_tree.arguments(text, match.start(1)) or [""]
            if not is_label(given[0], room) and not NESTED.match(given[0]):
                wrong(match.start(), "a kernel", given[0])
            if not NESTED.match(given[0]) and here != LAUNCHER and room not in OWN_LAUNCHES:
                found.append(f"{here}:{source_tree.line_of(text, match.start())}: a kernel goes through "
                             f"device::launch_kernel ({LAUNCHER})")
        for match in COPY.finditer(text):
            given = source_tree.arguments(text, match.start(1)) or [""]
            if not INSTANCE.match(given[0].strip()) and here not in COPIES_THAT_WAIT:
                found.append(f"{here}:{source_tree.line_of(text, match.start())}: a copy without an execution instance "
                             f"waits for the whole device: {' '.join(given[0].split())[:60]}")
        for match in ALLOCATION.finditer(text):
            given = source_tree.arguments(text, match.start(1))
            # A View made from a pointer or another View allocates nothing; one made from a string does.
            if (given and ('"' in given[0] or "std::string" in given[0])
                    and "view_alloc" not in given[0] and not is_parameter(given[0])):
                if not is_label(given[0], room):
                    wrong(match.start(), "an allocation", given[0])
        for match in VIEW_ALLOC.finditer(text):
            given = source_tree.arguments(text, match.start(2))
            # A mirror keeps its label.
            if not match.group(1) and not any(is_label(argument, room) for argument in given):
                wrong(match.start(), "an allocation", ", ".join(given))
        for match in REGION.finditer(text):
            given = source_tree.arguments(text, match.start(1)) or [""]
            if not is_label(given[0], room):
                wrong(match.start(), "a region", given[0])
        if here != FENCE_WRAPPER:
            for match in FENCE.finditer(text):
                wrong(match.start(), "a fence (use device::fence)", text[match.start():match.end() + 20])
        for match in FORWARDER.finditer(text):
            index = handed_on.get(match.group(1))
            given = source_tree.arguments(text, match.start(2))
            if index is None or index >= len(given) or is_parameter(given[index]):
                continue  # no forwarder, another overload, or the definition itself
            if not is_label(given[index], room):
                wrong(match.start(), f"{match.group(1)}()", given[index])
    return found


if __name__ == "__main__":
    source_tree.main(check)
