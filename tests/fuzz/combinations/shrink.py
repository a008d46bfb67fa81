# SPDX-License-Identifier: Apache-2.0
"""Leaves items out of a failing case as long as it fails in the same way (delta debugging, Zeller 2002)."""
import time


def shrink(case, fails, tries=80, seconds=150.0):
    """The smallest case found for which fails(case) is true; `case` itself must be one."""
    end, left = time.monotonic() + seconds, tries
    items = list(case.items)
    # Acts first: what comes after a run seldom matters to it.
    items.sort(key=lambda item: not item.startswith("@"))
    size = max(1, len(items) // 2)
    while size >= 1:
        at, smaller = 0, False
        while at < len(items) and left > 0 and time.monotonic() < end:
            kept = items[:at] + items[at + size:]
            left -= 1
            if fails(case.subset(kept)):
                items, smaller = kept, True
            else:
                at += size
        if left <= 0 or time.monotonic() >= end:
            break
        if size == 1 and not smaller:
            break
        size = size if size == 1 else size // 2
    return case.subset(items)
