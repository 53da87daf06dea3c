"""Packs the program as a wheel: kiln_diffusion-VERSION-py3-none-PLATFORM.whl, with the same bytes for the same input.

    wheel.py PROGRAM PLATFORM OUT_FOLDER [FOLDER OF LICENSES]

Prints the wheel's path. SOURCE_DATE_EPOCH is the time of its files.
"""

import base64
import hashlib
import os
import pathlib
import sys
import tomllib
import zipfile

from archive import zip_entry

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packaging" / "wheel"

# The oldest versions that are tested. cuRAND and NVRTC are not needed: Kiln's kernels are compiled.
CUDA = ["nvidia-cublas>=13.1.0.3,<14", "nvidia-cudnn-cu13>=9.19.0.56,<10"]


def metadata(about: dict[str, str], platform: str, licenses: list[str]) -> str:
    version = about["version"]
    lines = [
        "Metadata-Version: 2.4",
        "Name: kiln-diffusion",
        f"Version: {version}",
        "Summary: Images from text on your own machine: a native program, as one file.",
        "Keywords: stable-diffusion,flux,text-to-image,diffusion",
        f"License-Expression: {about['license']}",
        *(f"License-File: {name}" for name in licenses),
        "Requires-Python: >=3.8",
    ]
    if "repository" in about:
        lines.append(f"Project-URL: Source, {about['repository']}")
    # Apple has no CUDA.
    if not platform.startswith("macosx"):
        lines += ["Provides-Extra: cuda", *(f"Requires-Dist: {package} ; extra == 'cuda'" for package in CUDA)]
    lines += ["Provides-Extra: python", f"Requires-Dist: kiln-diffusion-python=={version} ; extra == 'python'"]
    lines += ["Description-Content-Type: text/markdown", "", (PACKAGE / "README.md").read_text()]
    return "\n".join(lines)


def pack(program: pathlib.Path, platform: str, out: pathlib.Path, notices: pathlib.Path | None) -> pathlib.Path:
    about = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    stem = f"kiln_diffusion-{about['version']}"
    licenses = [ROOT / "LICENSE-APACHE", ROOT / "LICENSE-MIT"]
    licenses += sorted(file for file in notices.iterdir() if file.is_file()) if notices else []

    files: dict[str, tuple[bytes, int]] = {}
    for source in sorted((PACKAGE / "kiln_diffusion").glob("*.py")):
        files[f"kiln_diffusion/{source.name}"] = (source.read_bytes(), 0o644)
    name = "kiln.exe" if platform.startswith("win") else "kiln"
    files[f"{stem}.data/scripts/{name}"] = (program.read_bytes(), 0o755)
    info = f"{stem}.dist-info"
    for file in licenses:
        files[f"{info}/licenses/{file.name}"] = (file.read_bytes(), 0o644)
    wheel = f"Wheel-Version: 1.0\nGenerator: kiln {about['version']}\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    files[f"{info}/METADATA"] = (metadata(about, platform, [file.name for file in licenses]).encode(), 0o644)
    record = []
    for path, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = ("".join([*record, f"{info}/RECORD,,\n"]).encode(), 0o644)

    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stem}-py3-none-{platform}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file, (content, mode) in files.items():
            archive.writestr(zip_entry(file, epoch, mode), content)
    return path


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    print(pack(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]) if sys.argv[4:] else None))
