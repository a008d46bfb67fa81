#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole way without Python: text -> tokenizer -> tokens -> training on dp=2 tp=2 -> a model in Hugging Face form.
# Everything is written below runs/whole-way/. Words after the command go to the training, such as run.precision=fp64.
#
# usage: scripts/whole-way.sh [--compare] [key=value ...]
#   --compare: then load the model with transformers (PyPI, in a virtual environment) and compare numbers and text
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compare=no
if [[ ${1:-} == --compare ]]; then compare=yes; shift; fi
text=${P3D_TEXT:-/usr/share/common-licenses}  # a folder of text

scripts/install-deps.sh
configure_and_build release p3d_app
p3d=build/release/p3d
rm -rf runs/whole-way
mkdir -p runs/whole-way

say "A tokenizer of the text in $text"
"$p3d" tokenizer train "$text" --vocab-size 2048 --special "<|endoftext|>" --out runs/whole-way/tokenizer.json

say "Tokens, on two ranks"
mpiexec -n 2 "$p3d" data tokenize "$text" --tokenizer runs/whole-way/tokenizer.json --out runs/whole-way/licences
"$p3d" data check runs/whole-way/licences

say "Training on four ranks (dp=2 tp=2)"
mpiexec -n 4 "$p3d" inputs/whole-way.toml "$@"

say "The model in Hugging Face form"
checkpoint=$(ls runs/whole-way/run/checkpoints/*.h5 | tail -n 1)
"$p3d" export "$checkpoint" runs/whole-way/model
"$p3d" report runs/whole-way/run --out runs/whole-way/report.html
"$p3d" generate "$checkpoint" --prompt "This licence" --prompt "You may not" --tokens 40 --temperature 0 --json \
  --logprobs 2048 > runs/whole-way/texts.json
"$p3d" generate "$checkpoint" --prompt "This licence" --tokens 40 --temperature 0

[[ $compare == yes ]] || exit 0
say "The same from transformers"
if [[ ! -x build/venv-transformers/bin/python ]]; then
  python3 -m venv build/venv-transformers
  build/venv-transformers/bin/pip install --quiet torch transformers
fi
build/venv-transformers/bin/python scripts/compare_with_transformers.py runs/whole-way/model runs/whole-way/texts.json
