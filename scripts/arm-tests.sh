#!/usr/bin/env bash
# Runs the tests of the operators for 64-bit ARM under qemu's emulation of a user program, on each instruction path and in
# each element type.
#
#   scripts/arm-tests.sh
#
# Needs `rustup target add aarch64-unknown-linux-gnu`, and of Debian qemu-user, gcc-aarch64-linux-gnu and
# libc6-dev-arm64-cross. It says nothing about speed.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
compiler=aarch64-linux-gnu-gcc
emulator=qemu-aarch64
for program in "$compiler" "$emulator"; do
    command -v "$program" >/dev/null || { echo "$program is missing, see the head of $0" >&2; exit 1; }
done
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$compiler
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$emulator -L /usr/aarch64-linux-gnu"

for path in neonbf16 neon portable; do
    for dtype in f32 f16 bf16; do
        echo "== $path, $dtype"
        KILN_ISA=$path KILN_TEST_DTYPE=$dtype cargo test --quiet --release --package kiln-ops --lib --target "$target"
    done
done
