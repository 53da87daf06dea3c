#!/usr/bin/env bash
# From nothing to the first image, timed: the wheel in an empty environment, and the wheel and the archive in a system
# without Rust, CUDA or a compiler.
#
#   scripts/release/from-nothing.sh WHEEL [ARCHIVE.tar.xz]
#
# Prints a table: bytes, seconds of a download at 10 MB/s, seconds until the image is there. Fails if a way takes more than 60 s.
# KILN_CHROOT=FOLDER is the system, which debootstrap makes there if it is empty: KILN_SUITE (bullseye, the oldest that
# Debian's mirrors have, with glibc 2.31) from KILN_MIRROR. It needs root; without these it is reported as ignored.
set -euo pipefail

fail() { echo "error: $*" >&2; exit 1; }

wheel=$(realpath "${1:?the wheel of the program}")
archive=${2:+$(realpath "$2")}
chroot=${KILN_CHROOT:-}
suite=${KILN_SUITE:-bullseye}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=()

# row NAME FILE START: a line of the table, with the time since START, in nanoseconds.
row() {
    local bytes took
    bytes=$(wc -c <"$2")
    took=$(($(date +%s%N) - $3))
    rows+=("$(awk -v name="$1" -v bytes="$bytes" -v took="$took" 'BEGIN {
        load = bytes / 10e6; took /= 1e9; printf "%-34s %12d %10.1f %10.1f %10.1f", name, bytes, load, took, load + took }')")
}

# is_image FILE
is_image() { [[ $(head -c 4 "$1" | tail -c 3) == PNG ]] || fail "$1 is no PNG"; }

draw=(txt2img 'a red apple' --output apple.png)
start=$(date +%s%N)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
(cd "$work" && env -i HOME="$work" venv/bin/kiln "${draw[@]}" >/dev/null)
is_image "$work/apple.png"
row 'wheel, empty environment' "$wheel" "$start"

if [[ -z $chroot || $EUID != 0 ]]; then
    echo '== ignored: a system without Rust and CUDA, which needs KILN_CHROOT and root'
else
    if [[ ! -x $chroot/bin/sh ]]; then
        command -v debootstrap >/dev/null || fail 'debootstrap is missing'
        debootstrap --variant=minbase --include=python3-venv,xz-utils "$suite" "$chroot" ${KILN_MIRROR:+"$KILN_MIRROR"} >"$work/debootstrap.log" ||
            { tail -3 "$work/debootstrap.log" >&2; exit 1; }
    fi
    for absent in rustc cargo cc nvcc nvidia-smi; do
        ! chroot "$chroot" /bin/sh -c "command -v $absent" >/dev/null || fail "the system in $chroot has $absent"
    done
    glibc=$(chroot "$chroot" /bin/sh -c 'ldd --version' | sed -n '1s/.* //p')
    place=$chroot/tmp/first
    trap 'rm -rf "$work" "$place"' EXIT
    # inside COMMAND: in the folder /tmp/first of the system.
    inside() { chroot "$chroot" /usr/bin/env -i HOME=/tmp/first PATH=/usr/bin:/bin /bin/sh -ec "cd /tmp/first; $1"; }

    rm -rf "$place"; mkdir -p "$place"; cp "$wheel" "$place"
    start=$(date +%s%N)
    # shellcheck disable=SC2016
    inside 'python3 -m venv venv; venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --no-index *.whl
        venv/bin/kiln txt2img "a red apple" --output apple.png >/dev/null'
    is_image "$place/apple.png"
    row "wheel, glibc $glibc" "$wheel" "$start"

    if [[ -n $archive ]]; then
        rm -rf "$place"; mkdir -p "$place"; cp "$archive" "$place"
        start=$(date +%s%N)
        inside 'tar -xJf *.tar.xz; */kiln txt2img "a red apple" --output apple.png >/dev/null'
        is_image "$place/apple.png"
        row "archive, glibc $glibc" "$archive" "$start"
    fi
fi

printf '%-34s %12s %10s %10s %10s\n' 'from nothing to the image' bytes 'at 10 MB/s' seconds all
printf '%s\n' "${rows[@]}"
printf '%s\n' "${rows[@]}" | awk '$NF > 60 { print "error: more than 60 s" > "/dev/stderr"; slow = 1 } END { exit slow }'
