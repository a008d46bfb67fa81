#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that have to do with kernels and with messages of their memory, on a machine with a GPU. Ranks share
# the GPU. Prints ctest's closing lines; the exit code is ctest's.
#
# usage: tests/platforms/gpu.sh <build folder> [-j jobs] [ctest's own options]
# The build is one for GPUs, with its tests (docs/gpu_cluster.md). A process takes 0.8 GB of the GPU.
set -euo pipefail
(( $# > 0 )) && [[ -f $1/CTestTestfile.cmake ]] || { sed -n '6,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
build=$1
shift
names='device|linalg|kernels|report_.*|io_checkpoint_np[13]|golden(_hugging_face|_experts|_sharded)?_np[124]'
names+='|(model|parallel|collectives|engine|steady|invariance)_.*np[124]|steady_np[124]'
names+='|comm_(gpu|gpu_trial|all_reduce|operations)_np[124]'
exec ctest --test-dir "$build" -R "^($names)\$" -E must_fail --output-on-failure "$@"
