#!/usr/bin/env bash
# Stands in for nvcc in the build of candle's kernels when code is checked and not linked: each output is an empty file. The real
# compiler takes minutes of two cores for them. `cargo xtask check-cuda` names this script in NVCC; Kiln's own kernels are compiled.
set -euo pipefail

output='' folder='' source=''
while (($#)); do
    case $1 in
    -o) output=$2 && shift ;;
    --output-directory) folder=$2 && shift ;;
    *.cu) source=$1 ;;
    esac
    shift
done
[[ -z $folder || -z $source ]] || output=$folder/$(basename "$source" .cu).ptx
[[ -z $output ]] || : >"$output"
