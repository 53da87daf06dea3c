"""What all tests of the Python module share: the emoji model, an engine, and the command `kiln`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import kiln

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "emoji"
#: Few steps of a small size: the tests compare bits and not what an image shows.
FAST = {"steps": 3, "width": 64, "height": 64}


@pytest.fixture(scope="session")
def engine():
    with kiln.Engine(MODEL) as engine:
        yield engine


@pytest.fixture(scope="session")
def command():
    """Runs `kiln` with arguments. The program is the one of this checkout, or that of the variable KILN."""
    program = os.environ.get("KILN") or shutil.which(str(ROOT / "target" / "release" / "kiln"))
    assert program, "target/release/kiln is missing: cargo build --release"

    def run(*arguments):
        words = [program, *map(str, arguments)]
        return subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT)

    return run
