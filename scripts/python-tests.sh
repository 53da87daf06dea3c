#!/usr/bin/env bash
# Builds the Python module as a wheel, installs it into an environment of its own in target/python, and runs tests/python. In another
# environment, which has the wheel and nothing else, it makes one image.
#
#   scripts/python-tests.sh [ARGUMENTS OF PYTEST]
#
# KILN_RAY=1 also runs the tests with Ray. Needs Python 3.11 or newer, packages of PyPI, and target/release/kiln, with which the
# tests compare. Where there is no such Python, or PyPI is not reached, the tests are reported as ignored.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=target/python
if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "== ignored: tests/python, which need Python 3.11 or newer with venv"
    exit
fi
[[ -x $environment/bin/python ]] || python3 -m venv "$environment"
if ! "$environment/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2' 'numpy>=2.1' 'pillow>=10' pytest 'tqdm>=4'; then
    echo "== ignored: tests/python, whose packages pip cannot install"
    exit
fi
# Ray is large, and its tests take minutes: they run where they are asked for.
if [[ ${KILN_RAY:-} == 1 ]]; then
    "$environment/bin/pip" install --quiet --disable-pip-version-check 'ray[data,serve]>=2.60'
elif ! "$environment/bin/python" -c 'import ray' 2>/dev/null; then
    echo "== ignored: the tests with Ray, which KILN_RAY=1 installs and runs"
fi
rm -f "$environment"/wheels/*.whl
"$environment/bin/maturin" build --release --locked --quiet --out "$environment/wheels"
"$environment/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$environment"/wheels/*.whl
# The module of the wheel, and not that of the checkout.
"$environment/bin/python" -P -m pytest -q -p no:cacheprovider tests/python "$@"

# As users install it: the wheel has no dependencies, and an image needs none.
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
python3 -m venv "$empty/venv"
"$empty/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$environment"/wheels/*.whl
KILN_CACHE="$empty/cache" "$empty/venv/bin/python" -P - "$empty" <<'PYTHON'
import importlib.util
import pathlib
import sys

import kiln

absent = [name for name in ("numpy", "PIL", "torch", "tqdm", "ray") if importlib.util.find_spec(name) is None]
assert len(absent) == 5, f"the environment is not empty: {absent}"
image = kiln.Engine().txt2img("a red apple", steps=2, width=64, height=64, seed=42)[0]
image.save(f"{sys.argv[1]}/apple.png")
assert kiln.inspect(f"{sys.argv[1]}/apple.png"), "the image has no settings"
assert list(pathlib.Path(sys.argv[1], "cache").glob("emoji-*/emoji/model_index.json")), "the small model is not in the cache"
print(f"== the wheel alone: {image!r}")
PYTHON
