#!/usr/bin/env bash
# Builds the program of a release, with the profile `dist`, and checks what it needs from the system.
#
#   scripts/release/program.sh TARGET OUT_FOLDER [--no-cuda]
#   scripts/release/program.sh --check PROGRAM      only the check of a Linux program
#
# Writes OUT_FOLDER/kiln, for Windows kiln.exe. On Linux the program needs glibc 2.28: zig links it against that version's
# symbols. zig and cargo-zigbuild come from PyPI, in an environment in target/; where PyPI is not reached, the program is
# linked as usual, needs this machine's glibc, and the script says so. With CUDA it has code for all of KILN_CUDA_ARCHS.
#
# Two builds of one commit by one toolchain have the same bytes: no path of this machine is in them, and the only time is
# SOURCE_DATE_EPOCH, by default that of the commit.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/release/tools.sh
source scripts/release/tools.sh

GLIBC=2.28
ZIGBUILD=cargo-zigbuild==0.24.1
KILN_CUDA_ARCHS=${KILN_CUDA_ARCHS:-75,80,86,89,90,100,120}
# What every Linux with glibc has.
LIBRARIES='libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1'

say() { echo "program: $*" >&2; }
fail() { echo "error: $*" >&2; exit 1; }

# check_libraries PROGRAM: that it is linked with nothing but the C library.
check_libraries() {
    local library
    for library in $(objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'); do
        [[ " $LIBRARIES " == *" $library "* ]] || fail "$1 needs $library, which not every system has"
    done
}

# check_glibc PROGRAM: that it runs with glibc 2.28.
check_glibc() {
    local newest
    newest=$(needed_glibc "$1")
    [[ -n $newest ]] || fail "$1 takes no symbol of glibc: is it a program for Linux with glibc?"
    [[ $(printf '%s\n' "$newest" "$GLIBC" | sort -V | tail -1) == "$GLIBC" ]] ||
        fail "$1 needs glibc $newest for$(objdump -T "$1" | awk -v version="GLIBC_$newest" 'index($0, version) { printf " %s", $NF }')"
}

if [[ ${1:-} == --check ]]; then
    program=$(cd "$here" && realpath -e "${2:?the program to check}")
    check_libraries "$program"
    check_glibc "$program"
    say "$program runs with glibc $GLIBC, it takes symbols up to $(needed_glibc "$program")"
    exit
fi

target=${1:?the target, for example x86_64-unknown-linux-gnu} out=$(cd "$here" && realpath -m "${2:?the folder of the program}") cuda=1
case ${3:-} in
    '') ;;
    --no-cuda) cuda=0 ;;
    *) fail "unknown argument $3; see the head of scripts/release/program.sh" ;;
esac
# Apple has no CUDA.
[[ $target == *apple* ]] && cuda=0

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
folder=${CARGO_TARGET_DIR:-target}

# A path with a space in it is one argument: the separator is cargo's own.
separator=$'\x1f'
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
flags=(--remap-path-prefix "$PWD=kiln" --remap-path-prefix "$cargo_home=cargo" --remap-path-prefix "$sysroot=rust")
CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator; echo "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS
# The same for ring's C and assembly.
if [[ $target != *msvc* ]]; then
    export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$PWD=kiln -ffile-prefix-map=$cargo_home=cargo"
fi

features=()
if ((cuda)); then
    features=(--features kiln-cli/cuda)
    if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/nowhere}/bin/nvcc ]]; then
        eval "$(scripts/cuda-toolkit.sh)"
    fi
    # candle's kernels are PTX, which drivers compile for this and later GPUs; Kiln's own are machine code for every one.
    export KILN_CUDA_ARCHS CUDA_COMPUTE_CAP=80
fi

build=(build) suffix='' linked=$target
if [[ $target == *-linux-gnu ]]; then
    if tools=$(release_tools "$ZIGBUILD" "$ZIG"); then
        export PATH=$tools:$PATH
        build=(zigbuild) linked=$target.$GLIBC
    else
        say 'warning: zig cannot be installed; the program will need the glibc of this machine'
    fi
fi
[[ $target == *windows* ]] && suffix=.exe
cargo "${build[@]}" --locked --profile dist --target "$linked" --package kiln-cli --bin kiln ${features[@]+"${features[@]}"} >&2

mkdir -p "$out"
install -m 755 "$folder/$target/dist/kiln$suffix" "$out/kiln$suffix"
program=$out/kiln$suffix
if [[ $target == *-linux-gnu ]]; then
    check_libraries "$program"
    if [[ ${build[0]} == zigbuild ]]; then check_glibc "$program"; fi
    say "$program needs glibc $(needed_glibc "$program")"
fi
say "$program has $(wc -c <"$program") bytes"
