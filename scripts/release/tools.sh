# shellcheck shell=bash
# What program.sh and wheels.sh share: packages of PyPI that build and link, and the glibc that a program needs. Sourced in the root.

# shellcheck disable=SC2034 # of those that source this file
# The linker: its libraries are stubs of any version of glibc.
ZIG=ziglang==0.17.1

# release_tools PACKAGE..: installs packages of PyPI into an environment in target/, and writes the folder of their programs.
release_tools() {
    local tools=$PWD/target/release-tools
    [[ -x $tools/bin/python ]] || python3 -m venv "$tools" >&2 || return 1
    "$tools/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || return 1
    echo "$tools/bin"
}

# needed_glibc PROGRAM: the newest version of glibc of which it takes a symbol.
needed_glibc() { objdump -T "$1" | grep -oE 'GLIBC_[0-9]+(\.[0-9]+)+' | sort -Vu | tail -1 | cut -d_ -f2; }
