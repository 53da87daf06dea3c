#!/usr/bin/env bash
# Tests scripts/install.sh: packs a program, serves the files on 127.0.0.1, and installs them into empty home folders.
#
#   scripts/release/test-install.sh PROGRAM
#
# PROGRAM runs here and has the version of Cargo.toml. The script runs under every one of sh, dash and busybox that is there, with
# curl and with wget, and with xz, unzip and python3; combinations that the machine lacks are reported as ignored.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:?the program}")
work=$(mktemp -d)
server=''
trap '[[ -z $server ]] || kill "$server"; rm -rf "$work"' EXIT

fail() {
    echo "error: $1" >&2
    [[ ! -f $work/log ]] || cat "$work/log" >&2
    exit 1
}

version=$(cargo xtask about version)
scripts/release.sh --program "$program" --out "$work/files" >"$work/log" 2>&1 || fail "scripts/release.sh fails"
for place in "latest/download" "download/v$version"; do
    mkdir -p "$work/web/releases/$place"
    cp "$work/files"/* "$work/web/releases/$place" 2>/dev/null || true # without folders
done
mkdir -p "$work/web/wrong/latest/download" "$work/web/empty/latest/download"
cp "$work/web/releases/latest/download"/* "$work/web/wrong/latest/download"
for file in "$work"/web/wrong/latest/download/kiln-*.{tar.xz,zip}; do printf x >>"$file"; done
: >"$work/web/empty/latest/download/SHA256SUMS"
python3 scripts/release/server.py "$work/web" "$work/port" &
server=$!
for ((i = 0; i < 100; i++)); do
    [[ ! -f $work/port ]] || break
    sleep 0.1
done
[[ -f $work/port ]] || fail "the server does not start"
address=http://127.0.0.1:$(<"$work/port")

# The programs of this machine without some of them.
without() {
    local folder=$work/path-$1 name
    mkdir "$folder"
    for name in /bin /usr/bin /usr/local/bin; do
        find "$name/" -maxdepth 1 '(' -type f -o -type l ')' -print0 | xargs -0 -n 500 ln -sf -t "$folder"
    done
    ln -sf "$(python3 -c 'import sys; print(sys.executable)')" "$folder/python3"
    shift
    for name; do rm -f "$folder/$name"; done
}

# run HOME ARGUMENTS..: the script with this home, in $shell with the PATH $tools; its output goes to $work/log.
run() {
    local home=$1
    shift
    # shellcheck disable=SC2086 # `busybox sh` is two words.
    env -i HOME="$home" PATH="$tools" TMPDIR="$work" KILN_RELEASES="$releases" ${install_dir:+"KILN_INSTALL_DIR=$install_dir"} \
        $shell "$script" "$@" >"$work/log" 2>&1
}

fresh() {
    home="$work/home of a user with ü"
    rm -rf "$home"
    mkdir "$home"
}

is_empty() {
    [[ -z $(find "$1" -mindepth 1) ]]
}

has_no_leftovers() {
    [[ -z $(find "$work" -maxdepth 1 -name 'kiln.*') ]]
}

# refused MESSAGE ARGUMENTS..: the script fails with this message and leaves nothing behind.
refused() {
    local message=$1
    shift
    fresh
    ! run "$home" "$@" || fail "$shell installs in spite of: $message"
    grep -qF "$message" "$work/log" || fail "$shell does not say: $message"
    { is_empty "$home" && has_no_leftovers; } || fail "files are left behind after: $message"
}

# The whole life of an installation.
check() {
    echo "== $shell, PATH without: $1"
    releases=$address/releases
    fresh
    run "$home" || fail "$shell does not install"
    [[ $("$home/.local/bin/kiln" -V) == "kiln $version" ]] || fail "the installed program does not run"
    "$home/.local/bin/kiln" --version >/dev/null || fail "the installed program does not run"
    python3 - "$home" "$version" "$releases" <<'PYTHON' || fail "the receipt is wrong"
import json, pathlib, sys
home, version, source = sys.argv[1:]
receipt = json.loads((pathlib.Path(home) / ".local/share/kiln/receipt.json").read_text())
assert receipt["version"] == version and receipt["source"] == source, receipt
assert receipt["program"] == f"{home}/.local/bin/kiln", receipt
assert receipt["archive"].startswith(f"kiln-{version}-") and receipt["archive"].endswith((".tar.xz", ".zip")), receipt
PYTHON
    [[ -s $home/.local/share/man/man1/kiln.1 && -s $home/.local/share/bash-completion/completions/kiln ]] ||
        fail "the manual page or completions are missing"
    grep -qF "is not in PATH" "$work/log" || fail "PATH is not mentioned"
    [[ ! -e $home/.profile ]] || fail "a startup file was changed"
    run "$home" || fail "a second installation fails"
    run "$home" --modify-path || fail "--modify-path fails"
    # shellcheck disable=SC2016 # The variable is that of the other shell.
    [[ $(env -i HOME="$home" PATH=/usr/bin:/bin sh -c '. "$HOME/.profile"; kiln -V') == "kiln $version" ]] || fail "PATH is not set"
    run "$home" --uninstall || fail "--uninstall fails"
    { is_empty "$home" && has_no_leftovers; } || fail "--uninstall leaves $(find "$home" -mindepth 1)"
    ! run "$home" --uninstall || fail "a second --uninstall does not fail"

    # Another folder, files of others, a program of others.
    fresh
    mkdir -p "$home/.local/share/kiln" "$home/my programs"
    : >"$home/.local/share/kiln/mine"
    printf 'mine\n' >"$home/my programs/kiln"
    printf 'export A=1\n' >"$home/.profile"
    install_dir="$home/my programs"
    ! run "$home" || fail "a program of others is replaced"
    grep -qF -- --force "$work/log" || fail "--force is not mentioned"
    [[ $(<"$install_dir/kiln") == mine ]] || fail "a program of others is replaced"
    run "$home" --force --modify-path || fail "--force fails"
    [[ $("$install_dir/kiln" -V) == "kiln $version" ]] || fail "KILN_INSTALL_DIR is not used"
    run "$home" --uninstall || fail "--uninstall fails"
    install_dir=''
    [[ $(cd "$home" && find . -mindepth 1 | sort | tr '\n' ' ') == "./.local ./.local/share ./.local/share/kiln ./.local/share/kiln/mine ./.profile ./my programs " ]] ||
        fail "--uninstall leaves or removes too much: $(find "$home")"
    [[ $(<"$home/.profile") == "export A=1" ]] || fail "--uninstall changes the startup file"
}

# What must not be installed.
refusals() {
    releases=$address/wrong refused "nothing was installed"
    releases=$address/cut refused "cannot be downloaded"
    releases=$address/empty refused "has no archive for"
    releases=$address/missing refused "cannot be downloaded"
    releases=http://example.org refused "is no https address"
    releases=$address/releases refused "unknown argument" --prefix
    refused "cannot be downloaded" --version 0.0.0
    fresh
    run "$home" --version "v$version" || fail "--version fails"
    run "$home" --uninstall || fail "--uninstall fails"
}

install_dir='' script=$work/files/install.sh
without curl curl
without wget wget
without unzip curl xz
without python curl xz unzip
without musl getconf ldd uname
for shell in "sh" "dash" "busybox sh"; do
    [[ $shell != sh || $(realpath "$(type -p sh)") != *dash ]] || continue
    if ! command -v "${shell%% *}" >/dev/null; then
        echo "== ignored: $shell, which is not here"
        continue
    fi
    for absent in wget curl unzip python; do
        case $absent in
            wget) needed=curl ;;
            curl) needed=wget ;;
            unzip) needed='wget unzip' ;;
            python) needed='wget python3' ;;
        esac
        # shellcheck disable=SC2086 # words
        if ! type -p $needed >/dev/null || [[ $(type -p $needed | wc -l) -lt $(wc -w <<<"$needed") ]]; then
            echo "== ignored: $shell without $absent, which needs $needed"
            continue
        fi
        tools=$work/path-$absent
        [[ $shell != busybox* ]] || ln -sf "$(type -p busybox)" "$tools/busybox"
        check "$absent"
        # They depend on what downloads.
        case $absent in wget | curl) refusals ;; esac
    done
done
if command -v busybox >/dev/null; then
    # Nothing but its own programs, and what glibc has.
    shell='busybox sh' tools=$work/path-busybox
    mkdir "$tools"
    for name in busybox $(busybox --list); do ln -sf "$(type -p busybox)" "$tools/$name"; done
    ln -sf "$(type -p getconf)" "$tools/getconf"
    check "all that is not of busybox"
    refusals
fi

# An old C library, musl, another system, another CPU.
shell=sh releases=$address/releases
fake() {
    # A new file: the folder has links to the system's programs, which must not be written through.
    rm -f "$work/path-musl/$1"
    printf '#!/bin/sh\n%s\n' "$2" >"$work/path-musl/$1"
    chmod +x "$work/path-musl/$1"
}
tools=$work/path-musl
ln -s "$(type -p uname)" "$tools/uname"
fake getconf 'exit 1'
fake ldd 'echo "musl libc (x86_64)" >&2; exit 1'
refused "this system has musl"
fake getconf 'echo "glibc 2.27"'
refused "this system has glibc 2.27"
fake getconf 'echo "glibc 2.28"'
fresh
run "$home" || fail "glibc 2.28 is refused"
# shellcheck disable=SC2016 # The variable is that of the script.
fake uname 'case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac'
refused "there is no program for riscv64"
# shellcheck disable=SC2016
fake uname 'case $1 in -s) echo FreeBSD ;; *) echo x86_64 ;; esac'
refused "there is no program for FreeBSD"

# A program that does not run.
cp -r "$work/web/releases" "$work/web/broken"
(
    cd "$work/web/broken/latest/download"
    stem=$(basename kiln-*.tar.xz .tar.xz)
    mkdir -p "$work/broken/$stem"
    printf '#!/bin/sh\nexit 1\n' >"$work/broken/$stem/kiln"
    tar -C "$work/broken" -cJf "$stem.tar.xz" "$stem"
    printf '%s  %s\n' "$(sha256sum <"$stem.tar.xz" | cut -d ' ' -f 1)" "$stem.tar.xz" >SHA256SUMS
)
tools=$PATH releases=$address/broken
refused "the program does not run here"

# Of a script that was cut nothing runs, wherever the cut is.
whole=$script script=$work/cut.sh size=$(wc -c <"$whole") releases=$address/releases
for ((cut = 1; cut < size - 1; cut += cut > size - 80 ? 1 : 397)); do
    head -c "$cut" "$whole" >"$script"
    fresh
    run "$home" || true
    { is_empty "$home" && has_no_leftovers; } || fail "a script cut after $cut of $size bytes runs"
done

# The copy in the repository belongs to no release.
script=scripts/install.sh releases=''
refused "belongs to no release"
echo "== the install script works in every way that this machine has"
