#!/bin/sh
# Installs kiln for this user: the program, its completions and its manual page. Needs no root.
#
#   curl -LsSf RELEASES/latest/download/install.sh | sh
#   curl -LsSf RELEASES/latest/download/install.sh | sh -s -- --version 1.2.3
#
#   --version X     this release instead of the newest
#   --force         also replaces a program kiln that this script did not install
#   --modify-path   appends the folder to PATH in the startup file of the shell, if PATH lacks it
#   --uninstall     removes everything that this script installed
#
# Variables: KILN_INSTALL_DIR (the folder of the program, by default ~/.local/bin), KILN_RELEASES (the address below which releases
# are: latest/download/FILE and download/vX/FILE). Runs in any POSIX shell with curl or wget, and with xz, unzip or python3.
#
# Everything is in functions, and the last line starts them: of a download that was cut, nothing runs.
# shellcheck disable=SC2016 # Some lines for startup files keep their variables.

kiln_fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

kiln_say() {
    printf '%s\n' "$1" >&2
}

kiln_has() {
    command -v "$1" >/dev/null 2>&1
}

# The platform's name in the names of archives.
kiln_target() {
    system=$(uname -s)
    cpu=$(uname -m)
    case $cpu in
        x86_64 | amd64) cpu=x86_64 ;;
        aarch64 | arm64) cpu=aarch64 ;;
        *) kiln_fail "there is no program for $cpu; build it from the sources" ;;
    esac
    case $system in
        Linux)
            kiln_check_libc
            printf '%s-unknown-linux-gnu\n' "$cpu"
            ;;
        Darwin)
            # A shell for Intel on a CPU of Apple.
            [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" != 1 ] || cpu=aarch64
            printf '%s-apple-darwin\n' "$cpu"
            ;;
        *) kiln_fail "there is no program for $system; on Windows use install.ps1" ;;
    esac
}

# Fails unless this is glibc 2.28 or newer.
kiln_check_libc() {
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=$(ldd --version 2>&1 | head -n 1)
    case $libc in
        *musl*) kiln_fail "this system has musl; kiln needs glibc 2.28 or newer: build it from the sources, or use a container" ;;
    esac
    number=$(printf '%s\n' "$libc" | sed -n 's/^.*[^0-9.]\([0-9][0-9]*\.[0-9][0-9]*\)[^ ]*$/\1/p')
    if [ -z "$number" ]; then
        set -- /lib/ld-musl-*
        [ ! -e "$1" ] || kiln_fail "this system has musl; kiln needs glibc 2.28 or newer: build it from the sources, or use a container"
        kiln_fail "this system's C library is unknown ($libc); kiln needs glibc 2.28 or newer"
    fi
    major=${number%%.*}
    minor=${number#*.}
    [ "$major" -gt 2 ] || { [ "$major" -eq 2 ] && [ "$minor" -ge 28 ]; } ||
        kiln_fail "this system has glibc $number; kiln needs 2.28 or newer: build it from the sources, or use a container"
}

# kiln_fetch ADDRESS FILE
kiln_fetch() {
    if kiln_has curl; then
        if [ "$secure" = 1 ]; then
            curl --fail --silent --show-error --location --proto '=https' --tlsv1.2 --retry 2 --connect-timeout 15 --output "$2" "$1"
        else
            curl --fail --silent --show-error --noproxy '*' --output "$2" "$1"
        fi
    elif [ "$secure" = 0 ]; then
        no_proxy='*' wget -q -t 1 -O "$2" "$1"
    elif wget --version 2>/dev/null | grep -q GNU; then
        wget -q -t 3 -T 30 -O "$2" "$1"
    else
        wget -q -O "$2" "$1" # busybox 1.35 crashes with -T
    fi || kiln_fail "$1 cannot be downloaded"
}

kiln_sha256() {
    if kiln_has sha256sum; then
        sha256sum <"$1"
    elif kiln_has shasum; then
        shasum -a 256 <"$1"
    elif kiln_has openssl; then
        openssl dgst -sha256 -r <"$1"
    else
        kiln_fail "sha256sum, shasum or openssl is needed to check the download"
    fi | cut -d ' ' -f 1
}

# The ending of the archives that can be unpacked here.
kiln_ending() {
    if kiln_has tar && { kiln_has xz || [ "$(uname -s)" = Darwin ]; }; then
        echo .tar.xz
    elif kiln_has unzip || kiln_has python3; then
        echo .zip
    else
        kiln_fail "xz, unzip or python3 is needed to unpack the download"
    fi
}

# kiln_unpack ARCHIVE FOLDER
kiln_unpack() {
    case $1 in
        *.tar.xz) if kiln_has xz; then xz -dc "$1" | tar -xf - -C "$2"; else tar -xf "$1" -C "$2"; fi ;;
        *) if kiln_has unzip; then unzip -q "$1" -d "$2"; else python3 -m zipfile -e "$1" "$2"; fi ;;
    esac || kiln_fail "the archive cannot be unpacked"
}

# A text as a string of JSON.
kiln_json() {
    printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# Makes a folder, and notes those that were missing.
kiln_folder() {
    case $1 in /?*) ;; *) return 0 ;; esac
    [ ! -d "$1" ] || return 0
    kiln_folder "${1%/*}"
    mkdir "$1" || kiln_fail "$1 cannot be made"
    kiln_note "$1"
}

# Notes a file or folder that uninstalling removes.
kiln_note() {
    grep -qxF "$1" "$work/list" 2>/dev/null || printf '%s\n' "$1" >>"$work/list"
}

# kiln_put FILE PLACE
kiln_put() {
    kiln_folder "${2%/*}"
    cp "$1" "$2" || kiln_fail "$2 cannot be written"
    kiln_note "$2"
}

# Removes files, then folders that are empty.
kiln_uninstall() {
    [ -f "$list" ] || kiln_fail "$list is missing: this script has installed nothing here"
    if [ -f "$receipt_folder/startup" ]; then
        { IFS= read -r startup && read -r made && IFS= read -r line; } <"$receipt_folder/startup"
        if [ -f "$startup" ]; then
            grep -vxF -e "$line" "$startup" >"$startup.kiln" || true
            cat "$startup.kiln" >"$startup"
            rm -f "$startup.kiln"
            # A file that this script made, and to which no one has added anything.
            [ "$made" = 0 ] || [ -s "$startup" ] || rm -f "$startup"
        fi
        rm -f "$receipt_folder/startup"
    fi
    while IFS= read -r path; do
        [ -d "$path" ] || rm -f "$path"
    done <"$list"
    # The last folder was made last. The list itself is in one of them.
    folders=$(sed '1!G;h;$!d' "$list")
    rm -f "$list" "$receipt"
    printf '%s\n' "$folders" | while IFS= read -r path; do
        [ ! -d "$path" ] || rmdir "$path" 2>/dev/null || true
    done
    kiln_say "kiln is uninstalled"
    [ ! -d "$receipt_folder" ] || kiln_say "what else is in $receipt_folder was left there"
}

# Puts the folder of the program into PATH, or says how.
kiln_path() {
    case :$PATH: in *:"$folder":*) return 0 ;; esac
    login=${SHELL:-sh}
    case ${login##*/} in
        zsh) startup=${ZDOTDIR:-$HOME}/.zshrc ;;
        fish) startup=${XDG_CONFIG_HOME:-$HOME/.config}/fish/conf.d/kiln.fish ;;
        *) startup=$HOME/.profile ;;
    esac
    if [ "${login##*/}" = bash ]; then
        # bash reads the first of them that exists.
        for name in .bash_profile .bash_login; do
            [ ! -f "$HOME/$name" ] || { startup=$HOME/$name; break; }
        done
    fi
    quoted=$(printf '%s' "$folder" | sed "s/'/'\\\\''/g")
    case $startup in
        *.fish) line="fish_add_path --global '$quoted' # kiln" ;;
        *) line="export PATH='$quoted':\"\$PATH\" # kiln" ;;
    esac
    if [ "$modify_path" = 0 ]; then
        kiln_say "$folder is not in PATH. To put it there, run this and add it to $startup:"
        kiln_say "  $line"
        return 0
    fi
    if ! grep -qxF -e "$line" "$startup" 2>/dev/null; then
        kiln_folder "${startup%/*}"
        made=0
        [ -e "$startup" ] || made=1
        printf '%s\n' "$line" >>"$startup"
        printf '%s\n%s\n%s\n' "$startup" "$made" "$line" >"$receipt_folder/startup"
    fi
    kiln_say "PATH is set in $startup: start a new shell"
}

# For NVIDIA's GPUs: the command for libraries that are missing.
kiln_gpu() {
    [ -e /proc/driver/nvidia/version ] || [ -e /usr/lib/wsl/lib/libcuda.so.1 ] || kiln_has nvidia-smi || return 0
    advice=$("$program" devices 2>/dev/null | grep -E 'pip install|pipx inject|uv tool') || return 0
    kiln_say "NVIDIA's driver is here, and libraries of CUDA are missing. \`kiln devices\` has:"
    kiln_say "$advice"
}

kiln_install() {
    set -eu
    umask 022
    version='' uninstall=0 force=0 modify_path=0
    while [ $# -gt 0 ]; do
        case $1 in
            --version)
                [ $# -gt 1 ] || kiln_fail "--version needs a value"
                version=${2#v}
                shift
                ;;
            --uninstall) uninstall=1 ;;
            --force) force=1 ;;
            --modify-path) modify_path=1 ;;
            *) kiln_fail "unknown argument $1; known are --version X, --force, --modify-path and --uninstall" ;;
        esac
        shift
    done
    : "${HOME:?}"
    case ${XDG_DATA_HOME:-} in
        /*) data=$XDG_DATA_HOME ;;
        *) data=$HOME/.local/share ;;
    esac
    receipt_folder=$data/kiln
    receipt=$receipt_folder/receipt.json
    list=$receipt_folder/installed.txt
    if [ "$uninstall" = 1 ]; then
        kiln_uninstall
        exit
    fi

    releases=${KILN_RELEASES:-@RELEASES@}
    releases=${releases%/}
    case $releases in
        https://*) secure=1 ;;
        http://127.0.0.1[:/]* | http://localhost[:/]*) secure=0 ;;
        @*) kiln_fail "this copy of the script belongs to no release: set KILN_RELEASES" ;;
        *) kiln_fail "KILN_RELEASES is no https address: $releases" ;;
    esac
    kiln_has curl || kiln_has wget || kiln_fail "curl or wget is needed"
    target=$(kiln_target)
    ending=$(kiln_ending)
    folder=${KILN_INSTALL_DIR:-$HOME/.local/bin}
    case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
    folder=${folder%/}
    program=$folder/kiln
    # The list of files has a line for each.
    case $folder$data in *'
'*) kiln_fail "a path has a line break" ;; esac
    if [ -e "$program" ] && [ "$force" = 0 ] && ! grep -qxF "$program" "$list" 2>/dev/null; then
        kiln_fail "$program is there, and this script did not install it; --force replaces it"
    fi

    work=$(mktemp -d "${TMPDIR:-/tmp}/kiln.XXXXXX")
    new='' installed=0
    trap kiln_end EXIT
    trap 'exit 130' INT TERM HUP
    place=$releases/latest/download
    [ -z "$version" ] || place=$releases/download/v$version
    kiln_fetch "$place/SHA256SUMS" "$work/sums"
    # The lines are `SUM  NAME`.
    archive=$(sed -n "s/^[0-9a-f]\{64\}  \(kiln-[0-9][^ /]*-$target\\$ending\)\$/\1/p" "$work/sums")
    case $archive in
        '') kiln_fail "$place has no archive for $target" ;;
        *'
'*) kiln_fail "$place/SHA256SUMS names several archives for $target" ;;
    esac
    stem=${archive%"$ending"}
    found=${stem#kiln-}
    found=${found%"-$target"}
    [ -z "$version" ] || [ "$version" = "$found" ] || kiln_fail "$place has version $found"
    kiln_say "kiln $found for $target"
    kiln_fetch "$place/$archive" "$work/$archive"
    expected=$(sed -n "s/^\([0-9a-f]\{64\}\)  $archive\$/\1/p" "$work/sums")
    actual=$(kiln_sha256 "$work/$archive")
    [ "$expected" = "$actual" ] ||
        kiln_fail "the SHA-256 of $archive is $actual, and SHA256SUMS has $expected; nothing was installed"
    mkdir "$work/files"
    kiln_unpack "$work/$archive" "$work/files"
    files=$work/files/$stem
    [ -f "$files/kiln" ] || kiln_fail "$archive has no program"

    # What an earlier run of this script made is still to be removed some day.
    [ ! -f "$list" ] || cp "$list" "$work/list"
    kiln_folder "$folder"
    new=$folder/.kiln.$$
    cp "$files/kiln" "$new" || kiln_fail "$folder cannot be written to: set KILN_INSTALL_DIR"
    chmod 755 "$new"
    said=$("$new" -V 2>&1) || true
    if [ "$said" != "kiln $found" ]; then
        kiln_fail "the program does not run here: it prints \"$said\""
    fi
    mv -f "$new" "$program"
    new='' installed=1
    kiln_note "$program"
    kiln_put "$files/completions/kiln.bash" "$data/bash-completion/completions/kiln"
    kiln_put "$files/completions/_kiln" "$data/zsh/site-functions/_kiln"
    kiln_put "$files/completions/kiln.fish" "$data/fish/vendor_completions.d/kiln.fish"
    kiln_put "$files/man/kiln.1" "$data/man/man1/kiln.1"
    for name in LICENSE-APACHE LICENSE-MIT THIRD-PARTY-LICENSES.txt; do
        kiln_put "$files/$name" "$receipt_folder/$name"
    done
    kiln_path
    # `kiln self update` reads the receipt.
    printf '{\n  "version": %s,\n  "program": %s,\n  "source": %s,\n  "archive": %s\n}\n' "$(kiln_json "$found")" \
        "$(kiln_json "$program")" "$(kiln_json "$releases")" "$(kiln_json "$archive")" >"$work/receipt"
    kiln_put "$work/receipt" "$receipt"
    kiln_say "$program is installed"
    kiln_gpu
    kiln_say 'a first image: kiln txt2img "a red apple"'
}

# At the end, also of a run that failed: what was installed is noted, or the folders that were made for it go.
kiln_end() {
    [ -z "$new" ] || rm -f "$new"
    if [ "$installed" = 1 ]; then
        kiln_folder "$receipt_folder"
        cp "$work/list" "$list"
    elif [ -f "$work/list" ] && [ ! -f "$list" ]; then
        sed '1!G;h;$!d' "$work/list" | while IFS= read -r path; do rmdir "$path" 2>/dev/null || true; done
    fi
    rm -rf "$work"
}

{ kiln_install "$@"; }
