#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""must_fail.py CODE WORDS COMMAND...: passes when COMMAND ends with exit code CODE and prints something like WORDS (a
regular expression, . matches line ends). A crash, a hang or another error is not the failure that is meant."""
import re
import subprocess
import sys


def main():
    code, words, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace")
    sys.stdout.write(ran.stdout)
    wrong = []
    if ran.returncode != code:
        wrong.append(f"exit code {ran.returncode}, not {code}")
    if not re.search(words, ran.stdout, re.DOTALL):
        wrong.append(f"nothing printed like: {words}")
    for text in wrong:
        print(f"FAILED: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
