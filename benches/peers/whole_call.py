"""Whole calls after loading: models/emoji, 256x256, 20 guided steps, prompt to pixels, Kiln and diffusers in turns.

    cargo build --release
    python benches/peers/whole_call.py --rounds 5

Kiln's time is what `kiln txt2img` says of its stages, without loading and saving; diffusers' is a second call of its
pipeline (the first warms up), with the same sampler, without a progress bar. The Python that runs this file needs
requirements.txt.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/emoji"
PROMPT = "red apple"
STEPS = 20
DTYPES = ["f32", "bf16"]


def kiln(options: argparse.Namespace, dtype: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        call = [options.kiln, "txt2img", "-m", MODEL, "-p", PROMPT, "--steps", STEPS, "--seed", 0, "--dtype", dtype]
        call += ["-o", Path(folder) / "image.png", *(["--threads", options.threads] if options.threads else [])]
        done = subprocess.run([str(word) for word in call], capture_output=True, text=True, check=True)
    stages = dict(re.findall(r"(encode|denoise|decode) ([\d.]+) s", done.stderr + done.stdout))
    return sum(float(seconds) for seconds in stages.values())


def diffusers(options: argparse.Namespace, dtype: str) -> float:
    call = [sys.executable, __file__, "--peer", dtype, *(["--threads", str(options.threads)] if options.threads else [])]
    return json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)


def peer(options: argparse.Namespace) -> None:
    """One process of diffusers: loads, calls twice, prints the second call's seconds."""
    import torch
    from diffusers import StableDiffusionPipeline

    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.peer]
    pipeline = StableDiffusionPipeline.from_pretrained(MODEL, torch_dtype=dtype, safety_checker=None)
    for network in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        network.to(memory_format=torch.channels_last)
    pipeline.set_progress_bar_config(disable=True)
    seconds = 0.0
    with torch.inference_mode():
        for _ in range(2):
            start = time.perf_counter()
            pipeline(PROMPT, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(0))
            seconds = time.perf_counter() - start
    print(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kiln", type=Path, default=ROOT / "target/release/kiln")
    parser.add_argument("--peer", choices=DTYPES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options)
    runners = {("kiln", "auto"): kiln, **{("diffusers", dtype): diffusers for dtype in DTYPES}}
    seconds: dict[tuple[str, str], list[float]] = {runner: [] for runner in runners}
    for i in range(options.rounds):
        order = list(runners)
        for engine, dtype in order[i % len(order) :] + order[: i % len(order)]:
            print(f"round {i + 1} of {options.rounds}: {engine} {dtype}", file=sys.stderr)
            seconds[engine, dtype].append(runners[engine, dtype](options, dtype))
    own = statistics.median(seconds["kiln", "auto"])
    print("| engine | dtype | median s | min s | max s | Kiln's time to its |\n|---|---|---|---|---|---|")
    for (engine, dtype), found in seconds.items():
        median = statistics.median(found)
        print(f"| {engine} | {dtype} | {median:.2f} | {min(found):.2f} | {max(found):.2f} | {own / median:.2f} |")


if __name__ == "__main__":
    main()
