#!/usr/bin/env python3
"""Packs a folder into FOLDER.tar.xz and FOLDER.zip, so that the same files give the same bytes.

    archive.py FOLDER EPOCH

Names are sorted, owners are 0, every time is EPOCH (seconds since 1970), and files have mode 644, programs 755. Python's modules
are the same on Linux, macOS and Windows, whose programs `tar` and `zip` are not.
"""

import lzma
import sys
import tarfile
import time
import zipfile
from pathlib import Path

PROGRAMS = ("kiln", "kiln.exe")
MODE_OF_FILES, MODE_OF_PROGRAMS = 0o644, 0o755
REGULAR_FILE = 0o100000


def entries(folder: Path):
    """The files of the folder with their names in the archive and their modes, sorted by name."""
    paths = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.as_posix())
    for path in paths:
        is_program = path.name in PROGRAMS and path.parent == folder
        yield path, path.relative_to(folder.parent).as_posix(), MODE_OF_PROGRAMS if is_program else MODE_OF_FILES


def write_tar(folder: Path, epoch: int) -> Path:
    path = folder.with_name(f"{folder.name}.tar.xz")
    with lzma.open(path, "wb", preset=9) as compressed:
        with tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for source, name, mode in entries(folder):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = source.stat().st_size, epoch, mode
                with source.open("rb") as file:
                    archive.addfile(entry, file)
    return path


def zip_entry(name: str, epoch: int, mode: int) -> zipfile.ZipInfo:
    """An entry whose header depends on nothing else."""
    entry = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])  # the format begins with 1980
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3  # Unix, on every system
    entry.external_attr = (REGULAR_FILE | mode) << 16
    return entry


def write_zip(folder: Path, epoch: int) -> Path:
    path = folder.with_name(f"{folder.name}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for source, name, mode in entries(folder):
            archive.writestr(zip_entry(name, epoch, mode), source.read_bytes(), compresslevel=9)
    return path


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, epoch = Path(sys.argv[1]), int(sys.argv[2])
    write_tar(folder, epoch)
    write_zip(folder, epoch)


if __name__ == "__main__":
    main()
