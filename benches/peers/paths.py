"""The parts of a model beside the U-Net, by instruction path and type: Kiln and diffusers, alternating, and a Markdown table.

    python benches/peers/paths.py --paths bf16,avx2-f32 --json paths.json

A path is a type on all instructions that the CPU has (`bf16`, `f32`, `f16`), or on fewer (`avx512-f32`, `avx2-f32`, ..): then
Kiln has `KILN_ISA`, and PyTorch the limits of its libraries. Parts: TAESD's decoder, the VAE's decoder and encoder, a text
encoder of each size, in the sizes of the presets. `--json FILE` keeps what was measured; later calls add to it, and the table
has all of it. A cell is a share of PyTorch's time: under 1, Kiln is faster. The Python that runs this file needs
requirements.txt.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import compare

# What limits both engines to the instructions of a path; nothing for those of the CPU.
LIMITS = {
    "": {},
    "avx512": {
        "KILN_ISA": "avx512",
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
    "avx2": {
        "KILN_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
TYPES = ["bf16", "f32", "f16"]
PATHS = [f"{isa}-{dtype}".removeprefix("-") for isa in LIMITS for dtype in TYPES]
# Preset, stage, and what the table calls it.
PARTS = [
    ("sd-turbo", "vae", "TAESD decode"),
    ("sd15-512", "vae", "VAE decode"),
    ("sd15-512", "vae-encode", "VAE encode"),
    ("sd15-512", "text", "CLIP ViT-L text"),
    ("sd-turbo", "text", "OpenCLIP ViT-H text"),
]
ENGINES = ["kiln", "diffusers"]


def measure(path: str, options: argparse.Namespace) -> list[dict]:
    """One entry for each part, engine and round."""
    isa, _, dtype = path.rpartition("-")
    entries = []
    for preset in dict.fromkeys(preset for preset, _, name in PARTS if name in options.parts):
        parts = [(stage, name) for of, stage, name in PARTS if of == preset and name in options.parts]
        for turn in range(options.rounds):
            for engine in ENGINES[turn % 2 :] + ENGINES[: turn % 2]:
                print(f"{path}, {preset}, round {turn + 1} of {options.rounds}: {engine}", file=sys.stderr)
                stages = ",".join(stage for stage, _ in parts)
                of_run = {**vars(options), "config": preset, "stages": stages, "dtype": dtype, "device": "cpu"}
                of_run |= {"batch": 1, "size": None, "steps": 1}
                report = compare.run(engine, argparse.Namespace(**of_run), LIMITS[isa])
                if report is None:
                    sys.exit(f"{path}: {engine} failed")
                of_stage = {stage["stage"]: stage["runs"] for stage in report["models"][0]["stages"]}
                threads = report["machine"]["threads"]
                for stage, name in parts:
                    entry = {"path": path, "part": name, "threads": threads, "engine": engine, "runs": of_stage[stage]}
                    entries.append(entry)
    return entries


def table(entries: list[dict]) -> str:
    """Kiln's share of PyTorch's time, and both times, by path and part."""
    names = [name for *_, name in PARTS]
    lines = [f"| path | threads | {' | '.join(names)} |", f"|---|---:|{'---:|' * len(names)}"]
    for path, threads in sorted({(e["path"], e["threads"]) for e in entries}, key=lambda key: (PATHS.index(key[0]), key[1])):
        cells = []
        for name in names:
            found = [e for e in entries if (e["path"], e["threads"], e["part"]) == (path, threads, name)]
            medians = []
            for engine in ENGINES:
                runs = [run for e in found if e["engine"] == engine for run in e["runs"]]
                medians.append(statistics.median(runs) if runs else None)
            kiln, other = medians
            cells.append(f"{kiln / other:.2f} ({kiln:.3g} s, {other:.3g} s)" if kiln and other else "")
        lines.append(f"| {path} | {threads} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for *_, name in PARTS]
    parser.add_argument("--paths", default="bf16,f32,f16", help=f"out of {', '.join(PATHS)}; empty: the table alone")
    parser.add_argument("--parts", default=",".join(names), help=f"out of {', '.join(names)}")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2, help="measured runs of a part in a round")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--kiln", type=Path, default=compare.ROOT / "target/release/kiln")
    parser.add_argument("--json", type=Path, help="adds what is measured to this file, and prints the table of all of it")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    paths = [path for path in options.paths.split(",") if path]
    if unknown := (set(paths) - set(PATHS)) | (set(options.parts) - set(names)):
        parser.error(f"{', '.join(sorted(unknown))}: see --help for what there is")
    entries = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for path in paths:
        measured = measure(path, options)
        again = {(e["path"], e["part"], e["threads"]) for e in measured}
        entries = [e for e in entries if (e["path"], e["part"], e["threads"]) not in again] + measured
        if options.json:
            options.json.write_text(json.dumps(entries, indent=1) + "\n")
    print(f"{compare.cpu_name()}, {os.cpu_count()} CPUs. Kiln's share of PyTorch's time (Kiln, PyTorch)\n")
    print(table(entries))


if __name__ == "__main__":
    main()
