#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh machine to a trained model: packages, build, and the main job on 8 ranks (dp=2 tp=2 pp=2) on text.
# Anything after the command goes to p3d: scripts/quickstart.sh run.name=short run.steps=50
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/install-deps.sh
configure_and_build release p3d_app  # the program alone; scripts/test.sh builds the tests

say "Train: mpiexec -n 8 build/release/p3d inputs/quickstart.toml $*"
exec mpiexec -n 8 build/release/p3d inputs/quickstart.toml "$@"
