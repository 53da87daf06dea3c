#!/usr/bin/env bash
# Compiles for platforms on which the tests do not run, Windows and Linux on 64-bit ARM, and links the program. For macOS the crate
# of Metal alone is compiled: the whole program needs Apple's C compiler.
#
#   scripts/cross-check.sh          links kiln and runs it (wine, qemu) where that is possible
#   scripts/cross-check.sh check    checks the types of the whole workspace
#
# The standard library of a target comes from scripts/cross-std.sh; as root on Debian the C compiler that `ring` needs and
# the emulators are installed. What is missing is reported as ignored. scripts/windows-tests.sh runs the tests, too.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-build}

# Whether the program $1 is installed, after an attempt to install the package $2.
has_program() {
    command -v "$1" >/dev/null && return
    [[ $EUID == 0 ]] && command -v apt-get >/dev/null || return
    apt-get update -qq && apt-get install -y -qq "$2" >/dev/null && command -v "$1" >/dev/null
}

# $1 target, $2 its C compiler and $3 the package of that, $4 an emulator and $5 the package of that, $6 the program's ending.
cross() {
    local target=$1 compiler=$2 emulator=$4 flags
    local variable=${target^^}
    variable=CARGO_TARGET_${variable//-/_}
    if ! flags=$(scripts/cross-std.sh "$target" 2>/dev/null); then
        echo "== ignored: $target, there is no standard library for it"
        return
    elif ! has_program "$compiler" "$3" >/dev/null 2>&1; then
        echo "== ignored: $target, $compiler is missing (Debian's $3)"
        return
    fi
    [[ -z $flags ]] || export "${variable}_RUSTFLAGS=$flags"
    if [[ $work == check || $emulator == none ]]; then
        cargo check --workspace --release --quiet --target "$target"
        echo "== $target compiles"
        return
    fi
    export "${variable}_LINKER=$compiler"
    cargo build --package kiln-cli --bin kiln --release --quiet --target "$target"
    echo "== $target links"
    if has_program "$emulator" "$5" >/dev/null 2>&1; then
        WINEDEBUG=-all QEMU_LD_PREFIX=/usr/${compiler%-gcc} "$emulator" "target/$target/release/kiln$6" --version
        echo "== $target runs in $emulator"
    else
        echo "== ignored: a run for $target, $emulator is missing (Debian's $5)"
    fi
}

cross x86_64-pc-windows-gnu x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64 wine wine64 .exe
cross aarch64-unknown-linux-gnu aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu qemu-aarch64 qemu-user ""

target=aarch64-apple-darwin
if flags=$(scripts/cross-std.sh "$target" 2>/dev/null); then
    [[ -z $flags ]] || export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS=$flags
    cargo check --package kiln-wgpu --release --quiet --target "$target"
    echo "== $target compiles (kiln-wgpu)"
else
    echo "== ignored: $target, there is no standard library for it"
fi
