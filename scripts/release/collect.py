#!/usr/bin/env python3
"""Completes a folder of release files: install scripts, metadata for package managers, SHA256SUMS.

    collect.py FOLDER VERSION REPOSITORY

Templates are scripts/install.sh, scripts/install.ps1, and the files packaging/**/*.in, whose results are in FOLDER/packaging.
@VERSION@, @REPOSITORY@ and @RELEASES@ (the address below which releases are) are replaced, and @SHA256:NAME@ by the sum of the
file NAME in FOLDER. If such a file is missing, all templates of its template's folder are left out, with a line that names the file.
"""

import hashlib
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SUMS = "SHA256SUMS"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fill(text: str, folder: Path, version: str, repository: str) -> str:
    """The text with all values. Raises FileNotFoundError for a sum of a file that is not there."""
    values = {"VERSION": version, "REPOSITORY": repository, "RELEASES": f"{repository}/releases"}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return re.sub(r"@SHA256:([^@\s]+)@", lambda found: sha256(folder / found[1]), text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())  # with the same line ends on every system


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    folder, version, repository = Path(sys.argv[1]), sys.argv[2], sys.argv[3].rstrip("/")
    for name in ("install.sh", "install.ps1"):
        write(folder / name, fill((ROOT / "scripts" / name).read_text("utf-8"), folder, version, repository))
    (folder / "install.sh").chmod(0o755)
    packaging = ROOT / "packaging"
    shutil.rmtree(folder / "packaging", ignore_errors=True)
    for group in sorted({template.parent for template in packaging.rglob("*.in")}):
        name = group.relative_to(packaging)
        try:
            filled = {t.stem: fill(t.read_text("utf-8"), folder, version, repository) for t in sorted(group.glob("*.in"))}
        except FileNotFoundError as missing:
            print(f"left out: packaging/{name.as_posix()} needs {Path(missing.filename).name}", file=sys.stderr)
            continue
        for file, text in filled.items():
            write(folder / "packaging" / name / file, text)
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    write(folder / SUMS, "".join(f"{sha256(path)}  {path.name}\n" for path in files))


main()
