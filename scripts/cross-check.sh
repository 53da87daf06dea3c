#!/usr/bin/env bash
# Type-checks the workspace for platforms on which the tests do not run: Windows, and Linux on 64-bit ARM.
#
#   scripts/cross-check.sh
#
# Installs the standard library of each target with rustup and, as root on Debian, the C compiler that `ring` needs. A
# target that cannot be installed is reported as ignored.
set -euo pipefail
cd "$(dirname "$0")/.."

# Whether the C compiler $1 is installed, after an attempt to install the package $2.
has_compiler() {
    command -v "$1" >/dev/null && return
    [[ $EUID == 0 ]] && command -v apt-get >/dev/null || return
    apt-get update -qq && apt-get install -y -qq "$2" >/dev/null && command -v "$1" >/dev/null
}

check() {
    local target=$1 compiler=$2 package=$3
    if ! rustup target add "$target" >/dev/null 2>&1; then
        echo "== ignored: $target, rustup cannot install its standard library"
    elif ! has_compiler "$compiler" "$package" >/dev/null 2>&1; then
        echo "== ignored: $target, $compiler is missing (Debian's $package)"
    else
        cargo check --workspace --release --quiet --target "$target"
        echo "== $target compiles"
    fi
}

check x86_64-pc-windows-gnu x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
check aarch64-unknown-linux-gnu aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
