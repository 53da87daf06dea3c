#!/usr/bin/env python3
"""Similarity of images by the type of weights and products, as a table for docs/compute.md.

    benches/quality.py KILN MODEL [--prompts "a rocket;a red apple"] [--steps 12] [--seeds 1,2] [--dtype f32]
                       [--types f16,bf16,q8_0,int8] [--more "--device cpu"]

For each type the images of all prompts and seeds by `kiln batch`, compared by `kiln compare` with those in --dtype: the peak
signal-to-noise ratio (PSNR) and the structural similarity (SSIM), the least, the median and the most. A type is one of --dtype (f16, bf16),
of --weight-type (f8, q8_0, q4_k), or of --compute (int8, fp8). Needs nothing but Python.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPTS = "a rocket;a red apple;sunflower;waving hand;a football;green heart;a house;a sad face"
DTYPES = ("f32", "f16", "bf16")
COMPUTE = ("int8", "fp8")
TYPES = "f16,bf16,f8,q8_0,q6_k,q5_k,q5_1,q5_0,q4_k,q4_1,q4_0,q3_k,q2_k,int8"


def flags(kind):
    if kind in DTYPES:
        return ["--dtype", kind]
    return ["--compute" if kind in COMPUTE else "--weight-type", kind]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kiln")
    parser.add_argument("model")
    parser.add_argument("--prompts", default=PROMPTS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="of the images that the others are compared with")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--more", default="", help="further flags of kiln batch")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    jobs = [{"prompt": prompt, "seed": seed, "steps": args.steps} for prompt in args.prompts.split(";") for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        file = folder / "jobs.jsonl"
        file.write_text("".join(json.dumps(job | {"output": f"{i}.png"}) + "\n" for i, job in enumerate(jobs)))

        def draw(name, *more):
            run([args.kiln, "batch", str(file), "-m", args.model, "-o", str(folder / name), *args.more.split(), *more])

        draw("expected", "--dtype", args.dtype)
        print("| Type | PSNR in dB: least | median | most | SSIM: least | median |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for kind in args.types.split(","):
            more = flags(kind)
            draw(kind, *(more if kind in DTYPES else ["--dtype", args.dtype, *more]))
            found = json.loads(run([args.kiln, "compare", str(folder / "expected"), str(folder / kind), "--json"]))
            psnr, ssim = (found["summary"][metric] for metric in ("psnr", "ssim"))
            shown = lambda value: value if isinstance(value, str) else f"{value:.1f}"
            ratios = " | ".join(shown(psnr[name]) for name in ("least", "median", "most"))
            print(f"| {kind} | {ratios} | {ssim['least']:.3f} | {ssim['median']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
