#!/usr/bin/env bash
# Makes the wheels of a release: kiln-diffusion, which is the program, and kiln-diffusion-python, which is the Python module.
#
#   scripts/release/wheels.sh PROGRAM TARGET OUT_FOLDER [--program-only] [--licenses FOLDER]
#
# PROGRAM is what scripts/release/program.sh made for TARGET. --program-only leaves the Python module out, which is a build
# of minutes. The files in the folder of --licenses go into the program's wheel. The wheel's tag says which glibc the
# program needs, at least 2.28. Needs Python 3.11, and for the module maturin from PyPI.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/release/tools.sh
source scripts/release/tools.sh

fail() { echo "error: $*" >&2; exit 1; }

# absolute PATH: what the caller means by it.
absolute() { (cd "$here" && realpath -m "$1"); }

program=$(absolute "${1:?the program}") target=${2:?its target} out=$(absolute "${3:?the folder of the wheels}")
shift 3
module=1 licenses=()
while (($#)); do
    case $1 in
        --program-only) module=0 ;;
        --licenses) licenses=("$(absolute "${2:?the folder of licenses}")"); shift ;;
        *) fail "unknown argument $1; see the head of scripts/release/wheels.sh" ;;
    esac
    shift
done
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

case $target in
    *-linux-gnu)
        glibc=$(needed_glibc "$program")
        minor=$(cut -d. -f2 <<<"$glibc")
        [[ -n $minor ]] || fail "$program takes no symbol of glibc"
        if ((minor > 28)); then echo "warning: $program needs glibc 2.$minor, and so does the wheel" >&2; else minor=28; fi
        platform=manylinux_2_${minor}_${target%%-*}
        ;;
    x86_64-*-windows-*) platform=win_amd64 ;;
    aarch64-apple-darwin) platform=macosx_11_0_arm64 ;;
    *) fail "there is no wheel for $target" ;;
esac
mkdir -p "$out"
python3 scripts/release/wheel.py "$program" "$platform" "$out" ${licenses[@]+"${licenses[@]}"}
((module)) || exit 0

tools=$(release_tools 'maturin>=1.9,<2' "$ZIG")
options=()
[[ $target != *-linux-gnu ]] || options=(--zig --compatibility manylinux_2_28)
PATH=$tools:$PATH maturin build --profile dist --locked --quiet --target "$target" --out "$out" ${options[@]+"${options[@]}"}
