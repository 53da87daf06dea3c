#!/usr/bin/env bash
# Sets up a CUDA 13.0 toolkit in .cuda/ from PyPI's wheels, for machines without one and without a GPU.
#
#   scripts/cuda-toolkit.sh [--compile-only]     prints the variables to export; eval "$(scripts/cuda-toolkit.sh)"
#
# --compile-only omits the parts that only linking needs (cuBLAS, cuDNN, cuRAND's and NVRTC's libraries). The rest is
# sufficient to type-check the `cuda` feature and to compile kernels. An existing toolkit is used unchanged.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mode=full
[ "${1:-}" = "--compile-only" ] && mode=compile
home=$(realpath -m "$root/.cuda/$mode") # several checkouts may share one toolkit through a link
wheels="$home/wheels"
toolkit="$home/toolkit"

compile_wheels=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
)
link_wheels=(
  nvidia-cuda-nvrtc==13.0.88 nvidia-curand==10.4.0.35 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56
)

say() { echo "cuda-toolkit: $*" >&2; }

install_wheels() {
  local python
  python=$(command -v python3) || { say "python3 is missing; install it, or set CUDA_HOME to a toolkit"; exit 3; }
  "$python" -m pip --version >/dev/null 2>&1 || { say "python3 has no pip; install it (python3-pip)"; exit 3; }
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --no-compile --upgrade \
    --target "$wheels" "$@" >&2
}

# An empty function for every entry point that cuda.h declares: sufficient for the linker on a machine without a driver.
stub_driver() {
  local names
  names=$(grep -ohE '\bcu[A-Z][A-Za-z0-9_]*\b' "$toolkit/include/cuda.h" | sort -u)
  {
    for name in $names; do
      for suffix in "" _v2 _v3 _v4 _ptsz _v2_ptsz; do echo "$name$suffix"; done
    done
  } | sort -u | grep -vE '(_v2_v2|_v3_v[0-9]|_v2_v3)$' | awk '{ print "void " $0 "(void) {}" }' >"$home/stub.c"
  "${CC:-cc}" -w -shared -fPIC -O0 -Wl,-soname,libcuda.so.1 -o "$toolkit/lib64/libcuda.so" "$home/stub.c"
}

link_tree() {
  local source="$wheels/nvidia/cu13"
  rm -rf "$toolkit"
  mkdir -p "$toolkit/lib64"
  ln -s "$source/bin" "$source/nvvm" "$toolkit/"
  mkdir "$toolkit/include"
  # cuDNN's wheel has a separate folder.
  for include in "$source/include" "$wheels/nvidia/cudnn/include"; do
    [ -d "$include" ] && ln -s "$include"/* "$toolkit/include/"
  done
  for library in "$source"/lib/* "$wheels"/nvidia/cudnn/lib/*; do
    [ -f "$library" ] || continue
    local name
    name=$(basename "$library")
    ln -sf "$library" "$toolkit/lib64/$name"
    case $name in *.so.*) ln -sf "$library" "$toolkit/lib64/${name%%.so.*}.so" ;; esac
  done
  ln -s lib64 "$toolkit/lib"
}

if [ ! -f "$home/done" ]; then
  say "setting up a $mode toolkit in .cuda/$mode"
  mkdir -p "$home"
  if [ "$mode" = full ]; then
    install_wheels "${compile_wheels[@]}" "${link_wheels[@]}"
  else
    install_wheels "${compile_wheels[@]}" nvidia-curand==10.4.0.35
    rm -f "$wheels"/nvidia/cu13/lib/libcurand*   # its headers are what kernels include
  fi
  link_tree
  stub_driver
  touch "$home/done"
fi

echo "export CUDA_HOME='$toolkit' CUDA_PATH='$toolkit' PATH='$toolkit/bin':\"\$PATH\""
echo "export CUDA_COMPUTE_CAP=\"\${CUDA_COMPUTE_CAP:-90}\" LIBRARY_PATH='$toolkit/lib64'\"\${LIBRARY_PATH:+:\$LIBRARY_PATH}\""
