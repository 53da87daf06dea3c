#!/usr/bin/env python3
"""Speed and error of the first-block cache by threshold, as a table for docs/guidance.md.

    benches/block_cache.py KILN MODEL [--thresholds 0.05,0.1,0.2] [--prompts "a rocket;a red apple"] [--steps 28]
                           [--seeds 1,2] [--predict] [--more "--device cpu --dtype f32"]

For each prompt and seed one image without the cache and one with each threshold, in turns, since the speed of a machine moves.
The share of skipped evaluations, the time of the stage denoise as a ratio to that of the image without the cache before it,
and the PSNR to that image, as medians with the least and the largest. Needs Pillow and NumPy.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from PIL import Image

PROMPTS = "a rocket;a red apple;sunflower;waving hand"


def run(arguments, file):
    """The summary of a run, and its image."""
    done = subprocess.run([*arguments, "-o", str(file), "--log-format", "json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    summary = next(event for event in map(json.loads, done.stderr.splitlines()) if event["event"] == "done")
    return summary, numpy.asarray(Image.open(file).convert("RGB"), dtype=numpy.float64)


def psnr(a, b):
    error = ((a - b) ** 2).mean()
    return float("inf") if error == 0 else 10 * numpy.log10(255**2 / error)


def spread(values, digits):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kiln")
    parser.add_argument("model")
    parser.add_argument("--thresholds", default="0.05,0.1,0.15,0.2,0.3")
    parser.add_argument("--prompts", default=PROMPTS)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--predict", action="store_true", help="with --block-cache-predict")
    parser.add_argument("--more", default="", help="further flags of kiln txt2img")
    args = parser.parse_args()
    thresholds = args.thresholds.split(",")
    predict = ["--block-cache-predict"] if args.predict else []
    rows = {threshold: ([], [], []) for threshold in thresholds}
    with tempfile.TemporaryDirectory() as folder:
        for prompt in args.prompts.split(";"):
            for seed in args.seeds.split(","):
                base = [args.kiln, "txt2img", prompt, "-m", args.model, "--steps", str(args.steps), "--seed", seed]
                base += args.more.split()
                for threshold in thresholds:
                    file = lambda name: Path(folder) / f"{name}-{prompt}-{seed}-{threshold}.png"
                    plain, expected = run(base, file("plain"))
                    cached, found = run([*base, "--block-cache", threshold, *predict], file("cached"))
                    shares, times, errors = rows[threshold]
                    shares.append(cached["skipped"] / cached["steps"])
                    times.append(cached["stages"]["denoise"] / plain["stages"]["denoise"])
                    errors.append(psnr(found, expected))
    print("| Threshold | Evaluations that skip | Time of the steps | PSNR in dB |")
    print("| ---: | ---: | ---: | ---: |")
    for threshold, (shares, times, errors) in rows.items():
        print(f"| {threshold} | {spread(shares, 2)} | {spread(times, 2)} | {spread(errors, 1)} |")


if __name__ == "__main__":
    main()
