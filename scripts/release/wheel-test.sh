#!/usr/bin/env bash
# Packs a program as a wheel twice, compares the bytes, installs it into an empty environment, and draws with it.
#
#   scripts/release/wheel-test.sh [PROGRAM]      target/release/kiln by default
#
# The wheel has the program without its line tables, as in a release: most of the time would be their compression.
#
# A program of scripts/release/program.sh in target/dist-program is checked for the glibc that it needs.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || ! command -v objdump >/dev/null; then
    echo "== ignored: the wheel of the program, which needs Python 3.11 or newer with venv, and objdump"
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$work/kiln
objcopy --strip-all "${1:-target/release/kiln}" "$program"
target=$(rustc -vV | sed -n 's/^host: //p')
for time in first second; do
    scripts/release/wheels.sh "$program" "$target" "$work/$time" --program-only >/dev/null
done
diff -r "$work/first" "$work/second"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$work"/first/*.whl
cmp "$program" "$work/venv/bin/kiln"
[[ $("$work/venv/bin/kiln" -V) == "$("$work/venv/bin/python" -P -m kiln_diffusion -V)" ]]
(cd "$work" && env -i HOME="$work" venv/bin/kiln txt2img "a red apple" --steps 2 --output apple.png)
[[ $(head -c 4 "$work/apple.png" | tail -c 3) == PNG ]]
if [[ -x target/dist-program/kiln && $target == *-linux-gnu ]]; then
    scripts/release/program.sh --check target/dist-program/kiln
else
    echo "== ignored: the check of the release's program, which scripts/release/program.sh did not build"
fi
echo "== the wheel draws: $(du -k "$work"/first/*.whl | cut -f1) KiB"
