#!/usr/bin/env bash
# Makes the files of a release for one platform, and prints a table of them.
#
#   scripts/release.sh [--target TARGET] [--out FOLDER] [--no-cuda] [--check-reproducible]
#   scripts/release.sh --program FILE [--text-from PROGRAM] [--target TARGET] [--out FOLDER] [--no-cuda] [--check-reproducible]
#   scripts/release.sh --collect FOLDER
#
#   --program FILE         packs this program and builds none; there are no wheels then
#   --text-from PROGRAM    a program of the same version that runs here and prints completions and the manual page, when that for
#                          TARGET does not
#   --no-cuda              without the feature cuda
#   --check-reproducible   does everything twice, the build too, and fails unless all files have the same bytes
#   --collect FOLDER       only what needs the files of all platforms: install scripts, package managers, SHA256SUMS
#
# TARGET is this machine's platform by default, FOLDER target/releases/VERSION. Needs Rust, Python 3.11 and git, and for a build what
# scripts/release/program.sh needs. SOURCE_DATE_EPOCH is the time of all files, by default that of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "error: $1; see the head of scripts/release.sh" >&2
    exit 2
}

target='' out='' program='' text_from='' collect='' cuda=1 twice=0
while (($#)); do
    case $1 in
        --target | --out | --program | --text-from | --collect)
            (($# > 1)) || usage "$1 needs a value"
            name=${1#--}
            printf -v "${name//-/_}" %s "$2"
            shift
            ;;
        --no-cuda) cuda=0 ;;
        --check-reproducible) twice=1 ;;
        *) usage "unknown argument $1" ;;
    esac
    shift
done

version=$(cargo xtask about version)
repository=$(cargo xtask about repository)
if [[ -n $collect ]]; then
    python3 scripts/release/collect.py "$collect" "$version" "$repository"
    exit
fi
target=${target:-$(rustc -vV | sed -n 's/^host: //p')}
out=${out:-target/releases/$version}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
stem=kiln-$version-$target
suffix=''
[[ $target == *windows* ]] && suffix=.exe
[[ $target == *apple* ]] && cuda=0
options=() features=''
((cuda)) && features=cuda || options=(--no-cuda)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# step FOLDER NAME COMMAND..: runs the command, and notes its time in the folder's table.
step() {
    local folder=$1 name=$2 start=$SECONDS
    shift 2
    "$@" >&2
    printf '%s\t%d\n' "$name" $((SECONDS - start)) >>"$folder.seconds"
}

# text PROGRAM FOLDER: completions for four shells and the manual page.
text() {
    mkdir -p "$2/completions" "$2/man"
    "$1" completions bash >"$2/completions/kiln.bash"
    "$1" completions zsh >"$2/completions/_kiln"
    "$1" completions fish >"$2/completions/kiln.fish"
    "$1" completions powershell >"$2/completions/_kiln.ps1"
    "$1" man >"$2/man/kiln.1"
}

# make FOLDER: all files for this platform.
make() {
    local folder=$1 built=$program stage=$work/stage/$stem
    rm -rf "$folder" "$work/stage"
    mkdir -p "$folder" "$stage"
    : >"$folder.seconds"
    if [[ -z $program ]]; then
        built=$work/built/kiln$suffix
        rm -rf "$work/built"
        step "$folder" program scripts/release/program.sh "$target" "$work/built" ${options[@]+"${options[@]}"}
    fi
    install -m 755 "$built" "$stage/kiln$suffix"
    local speaker=${text_from:-$stage/kiln$suffix} said
    said=$("$speaker" -V | tr -d '\r') || { echo "error: $speaker does not run here: give --text-from" >&2; exit 1; }
    [[ $said == "kiln $version" ]] || { echo "error: $speaker is \"$said\", and Cargo.toml has $version" >&2; exit 1; }
    step "$folder" completions text "$speaker" "$stage"
    step "$folder" licenses cargo xtask notices "$target" "$stage" "$features"
    if [[ -z $program && -x scripts/release/wheels.sh ]]; then
        mkdir -p "$work/licenses"
        cp "$stage/THIRD-PARTY-LICENSES.txt" "$work/licenses"
        step "$folder" wheels scripts/release/wheels.sh "$built" "$target" "$folder" --licenses "$work/licenses"
    fi
    cp README.md LICENSE-APACHE LICENSE-MIT "$stage"
    step "$folder" archives python3 scripts/release/archive.py "$stage" "$SOURCE_DATE_EPOCH"
    mv "$work/stage/$stem.tar.xz" "$work/stage/$stem.zip" "$folder"
    cp "$stage/kiln.cdx.json" "$folder/$stem.cdx.json"
}

if ((twice)); then
    # The second build begins with nothing, in the folder of the first: a path may be a part of a program.
    [[ -n $program ]] || export CARGO_TARGET_DIR=$PWD/target/reproducible CARGO_BUILD_BUILD_DIR=$PWD/target/reproducible
    [[ -n $program ]] || rm -rf target/reproducible
    make "$work/first"
    [[ -n $program ]] || rm -rf target/reproducible
    make "$work/files"
    diff -r "$work/first" "$work/files" >&2 || { echo "error: both times differ" >&2; exit 1; }
    echo "both times give the same bytes"
else
    make "$work/files"
fi
# Files of other platforms stay.
mkdir -p "$out"
cp -R "$work/files/." "$out/"
step "$work/files" sums python3 scripts/release/collect.py "$out" "$version" "$repository"

printf '\n%-62s %12s\n' "file in $out" bytes
find "$out" -type f -print0 | sort -z | while IFS= read -r -d '' file; do
    printf '%-62s %12d\n' "${file#"$out"/}" "$(wc -c <"$file")"
done
printf '\n%-62s %12s\n' step seconds
awk -F '\t' '{ printf "%-62s %12d\n", $1, $2; all += $2 } END { printf "%-62s %12d\n", "all", all }' "$work/files.seconds"
