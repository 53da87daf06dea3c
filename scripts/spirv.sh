#!/usr/bin/env bash
# Compiles the kernels that are written in GLSL, because WGSL lacks what they use: crates/wgpu/src/kernels/workgroup/*.comp to *.spv, which
# the repository has, so that a build needs no compiler of GLSL. Needs glslang 16 and spirv-val (Debian: glslang-tools, spirv-tools).
# A test checks that each .spv has its source in it.
set -euo pipefail
cd "$(dirname "$0")/../crates/wgpu/src/kernels/workgroup"
for source in *.comp; do
  # -g puts the source and the names of constants into the result.
  glslang --quiet -g --target-env vulkan1.3 -V "$source" -o "${source%.comp}.spv"
  spirv-val --target-env vulkan1.3 "${source%.comp}.spv"
done
