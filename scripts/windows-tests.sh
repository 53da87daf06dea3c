#!/usr/bin/env bash
# Runs Kiln for Windows in wine: the program draws an image with the small test model, then the tests that need no GPU run.
#
#   scripts/windows-tests.sh                 the crates below
#   scripts/windows-tests.sh cli batch       the tests of some crates
#
# Needs a standard library for x86_64-pc-windows-gnu (scripts/cross-std.sh), MinGW and wine (Debian's gcc-mingw-w64-x86-64
# and wine64). Without them it ends with "ignored". Tests that need a shell or signals of Unix report themselves as ignored.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-pc-windows-gnu
crates=("$@")
((${#crates[@]})) || crates=(files mempool prompt scheduler hub media weights models request setup results batch cli)

for program in wine x86_64-w64-mingw32-gcc; do
    command -v $program >/dev/null || { echo "== ignored: $program is missing"; exit 0; }
done
flags=$(scripts/cross-std.sh $target) || { echo "== ignored: there is no standard library for $target"; exit 0; }
[[ -z $flags ]] || export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS=$flags
folder=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine WINEDEBUG=-all WINEPREFIX=$folder/wine
mkdir -p "$folder/wine-tmp"
# Files of the tests lie on the drive of the checkout, whose paths they are given without a drive letter.
for name in TEMP TMP; do
    wine reg add 'HKCU\Environment' /v $name /d "Z:${folder//\//\\}\\wine-tmp" /f >/dev/null 2>&1
done
# Rust's standard library takes random numbers from a library that wine 8 lacks: one with that function stands in.
library=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
if [[ ! -e $library ]]; then
    printf '%s\n' '#include <windows.h>' 'BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);' \
        '__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T n) { return SystemFunction036(to, n); }' |
        x86_64-w64-mingw32-gcc -shared -x c -o "$library" - -ladvapi32
fi

cargo build --package kiln-cli --bin kiln --release --target $target
kiln=$folder/$target/release/kiln.exe
wine "$kiln" --version
wine "$kiln" devices
wine "$kiln" txt2img "a red apple" -m models/emoji --steps 4 -o 'Z:'"${folder//\//\\}"'\wine-tmp\ein Äpfelchen.png' --overwrite
cargo xtask png "$folder/wine-tmp/ein Äpfelchen.png" 256x256
packages=()
for crate in "${crates[@]}"; do packages+=(--package "kiln-$crate"); done
cargo test --release --target $target --no-fail-fast "${packages[@]}"
echo "== the tests of ${crates[*]} pass in wine"
