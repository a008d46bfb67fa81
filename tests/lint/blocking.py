# SPDX-License-Identifier: Apache-2.0
"""Every MPI call that can wait for another rank goes through the one door, comm::blocking, which names it: a rank that
stops inside is reported in bounded time. What is not known to be local or non-blocking counts as blocking."""
import re

import source_tree

CALL = re.compile(r"\bP?(MPI_[A-Z][A-Za-z0-9_]*)\s*\(")
# Local, non-blocking, or (abort) the end. MPI_I... is non-blocking but for MPI_Init.
LOCAL = re.compile(r"MPI_(?:I(?!nit$|nit_thread$)[a-z]\w*|Abort|Cancel|Cart_coords|Cart_rank|Error_(?:class|string)"
                   r"|Comm_(?:compare|get_\w+|group|idup|rank|set_\w+|size|test_inter)|Finalized|Get_\w+|Group_\w+"
                   r"|Info_\w+|Query_thread|Request_(?:free|get_status)|Test\w*|Type_\w+"
                   r"|Win_(?:get_\w+|set_\w+|shared_query)|Wtime)$")
# blocking("MPI_Bcast", "node", [&] { return
DOOR = re.compile(r'\bblocking\(\s*"(\w+)"[^;{}]*\{\s*return\s*$')
# BlockingCall const here("MPI_Init_thread", "world"); check(
START = re.compile(r'\bBlockingCall const \w+\(\s*"(\w+)"[^;{}]*\);[^;{}]*$')


def check(root):
    found = []
    for path in source_tree.files(root, ["include", "src"], source_tree.CPP):
        text = source_tree.code(path.read_text())
        for match in CALL.finditer(text):
            name, before = match.group(1), text[:match.start()]
            in_a_text = before[before.rfind("\n") + 1:].replace('\\"', "").count('"') % 2 == 1
            if LOCAL.match(name) or in_a_text:
                continue
            door = DOOR.search(before) or START.search(before)
            if door is None or door.group(1) != name:
                found.append(f"{path.relative_to(root)}:{source_tree.line_of(text, match.start())}: {name} may block: "
                             f'call it through comm::blocking("{name}", ...)')
    return found


if __name__ == "__main__":
    source_tree.main(check)
