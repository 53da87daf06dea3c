#!/usr/bin/env bash
# Installs the compiler of CUDA 13.0 and its headers in .cuda/ from PyPI's wheels, for machines without a toolkit and without a GPU.
#
#   eval "$(scripts/cuda-toolkit.sh)"     it prints the variables to export
#
# That is all that a build with the feature `cuda` needs: the program loads CUDA's libraries when it runs. An existing
# toolkit is used unchanged.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home=$(realpath -m "$root/.cuda/toolkit-13.0") # several checkouts may share one toolkit through a link
wheels="$home/wheels"
toolkit="$home/toolkit"

# cuRAND is there for its header alone.
packages=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-curand==10.4.0.35
)

say() { echo "cuda-toolkit: $*" >&2; }

install_wheels() {
  local python
  python=$(command -v python3) || { say "python3 is missing; install it, or set CUDA_HOME to a toolkit"; exit 3; }
  "$python" -m pip --version >/dev/null 2>&1 || { say "python3 has no pip; install it (python3-pip)"; exit 3; }
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --no-compile --upgrade \
    --target "$wheels" "$@" >&2
}

link_tree() {
  local source="$wheels/nvidia/cu13"
  rm -rf "$toolkit" "${source:?}/lib"
  mkdir -p "$toolkit/lib64"
  ln -s "$source/bin" "$source/nvvm" "$source/include" "$toolkit/"
}

if [ ! -f "$home/done" ]; then
  say "installing the compiler in .cuda/"
  mkdir -p "$home"
  install_wheels "${packages[@]}"
  link_tree
  touch "$home/done"
fi

echo "export CUDA_HOME='$toolkit' CUDA_PATH='$toolkit' PATH='$toolkit/bin':\"\$PATH\""
# For candle's kernels, which are PTX: later GPUs run it, earlier ones do not. A build for a list of GPUs begins with the
# oldest that has bf16.
oldest=${KILN_CUDA_ARCHS:+80}
echo "export CUDA_COMPUTE_CAP='${CUDA_COMPUTE_CAP:-${oldest:-90}}'"
