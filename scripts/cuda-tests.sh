#!/usr/bin/env bash
# Runs the tests of a bundle (cargo xtask bundle-cuda) on a machine with a GPU, from the repository's root.
#
#   BUNDLE/cuda-tests.sh [f32 f16 bf16]
#
# Tests that need a GPU are ignored elsewhere and run here. Tests that need the reference data run if it exists
# (KILN_SHARED, or ../shared next to the checkout), those of two GPUs if there are two. Measurements do not run. If python3
# has PyTorch, its copies of CUDA's libraries are used.
set -uo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
site=$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null) &&
  export LD_LIBRARY_PATH="$site/nvidia/cu13/lib:$site/nvidia/cudnn/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export KILN_TEST_DEVICE=cuda KILN_MODELS="$PWD/models"
skip=(--skip measure_)
[[ -d ${KILN_SHARED:-../shared}/data ]] || skip+=(--skip shared_data)
if (($(nvidia-smi --list-gpus 2>/dev/null | wc -l) < 2)); then
  skip+=(--skip two_gpus)
  echo "ignored: the tests two_gpus_*, which need two GPUs"
fi
failed=0
# NAME PROGRAM [FILTER]: the tests of a program in $dtype.
run() {
  if KILN_TEST_DTYPE=$dtype "${@:2}" --include-ignored "${skip[@]}" --nocapture --test-threads 1 >"${OUT:-/tmp}/log" 2>&1; then
    echo "ok      $1: $(grep -c '^test .* ok$' "${OUT:-/tmp}/log") tests"
  else
    failed=1
    echo "FAILED  $1"
    grep -E "panicked|over [0-9]|error" "${OUT:-/tmp}/log" | head -20
  fi
}
for dtype in "${@:-f32}"; do
  for program in "$bundle"/tests/*; do
    run "$(basename "$program") $dtype" "$program"
    grep -E "of the standard deviation" "${OUT:-/tmp}/log" >>"${OUT:-/tmp}/parity-$dtype.txt"
  done
  # Convolutions in Kiln's own kernels. In f32 they always are.
  [[ $dtype == f32 ]] || KILN_CUDNN=off run "convolutions without cuDNN $dtype" "$bundle/tests/ops-kiln_ops" conv2d
done
exit $failed
