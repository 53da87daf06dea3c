#!/usr/bin/env bash
# Sees to it that there is a standard library for a target, and prints the flag that rustc needs to find it, if any.
#
#   scripts/cross-std.sh x86_64-pc-windows-gnu
#
# The toolchain has the library, or rustup installs it, or, with KILN_BUILD_STD=1, it is built from its sources into target/std, which
# takes about three minutes: rustup's component rust-src or Debian's package of that name (Debian has no library for Windows
# since Rust 1.85). Fails if none of it works.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1

has_library() {
    compgen -G "$1/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null
}

toolchain=$(rustc --print sysroot)
if has_library "$toolchain" || { rustup target add "$target" >&2 && has_library "$toolchain"; } 2>/dev/null; then
    exit 0
fi
sources=$toolchain/lib/rustlib/src/rust/library
[[ ${KILN_BUILD_STD:-} == 1 && -f $sources/Cargo.lock ]] || { echo "error: no standard library for $target; KILN_BUILD_STD=1 builds it from rust-src" >&2; exit 1; }
built=$PWD/target/std/$(rustc -V | cut -d' ' -f2)
if ! has_library "$built"; then
    # The library uses features that only its own compiler has, as its own build does.
    (cd "$sources" && RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zforce-unstable-if-unmarked CARGO_TARGET_DIR=$built/build \
        cargo build --release --locked --quiet --package sysroot --target "$target") >&2
    mkdir -p "$built/lib/rustlib/$target/lib"
    cp "$built/build/$target/release/deps/"*.rlib "$built/lib/rustlib/$target/lib/"
fi
echo "--sysroot=$built"
