"""Loading: from a folder of f16 files in the page cache to the first step, Kiln and diffusers in turns.

    cargo build --release
    python benches/peers/load.py --folder /tmp/sd15-random --dtypes bf16,f32,f16 --rounds 5

The folder is made where it does not exist: Stable Diffusion 1.5 with random weights (2 GB), and the tokenizer of models/emoji. Two times are
measured, without the start of the programs and the imports of Python:

- `start`: from the call that loads to the start of the first step, with both texts encoded.
- `end`: the same, and what the first step takes longer than the next ones: a program may leave work to it. The image has
  64x64 pixels, so that a step is short.

`--weight-cache DIR` is passed to Kiln; the call before those that count fills the folder. The Python that runs this file needs requirements.txt.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRESET = ROOT / "crates/models/src/presets/sd15-512.json"
EMOJI = ROOT / "models/emoji"
PROMPT = "red apple"
STEPS = 4


def make(folder: Path) -> None:
    """A folder of diffusers with random weights in f16."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    import diffusers_bench as peer

    preset = json.loads(PRESET.read_text())
    kinds = {
        "unet": lambda: UNet2DConditionModel(**preset["denoiser"]),
        "vae": lambda: AutoencoderKL(**preset["vae"]),
        "text_encoder": lambda: CLIPTextModel(CLIPTextConfig(**preset["text_encoders"][0])),
    }
    for name, make_network in kinds.items():
        with torch.device("meta"):
            network = make_network()
        network = network.to_empty(device="cpu")
        with torch.no_grad():
            peer.randomise(network)
        network.half().save_pretrained(folder / name)
    DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012).save_pretrained(folder / "scheduler")
    shutil.copytree(EMOJI / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    shutil.copy(EMOJI / "model_index.json", folder / "model_index.json")


def read(folder: Path) -> None:
    """Reads every file, so that it is in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def cpus(options: argparse.Namespace) -> list[str]:
    """The prefix that binds a program to as many processors as it has threads."""
    if not options.threads or not shutil.which("taskset"):
        return []
    return ["taskset", "-c", ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[: options.threads])]


def kiln_call(options: argparse.Namespace, dtype: str, steps: int) -> tuple[float, float]:
    """Seconds of loading and encoding, and of the steps."""
    call = [*cpus(options), options.kiln, "txt2img", "-m", options.folder, "-p", PROMPT, "--steps", steps, "--seed", 0]
    call += ["--width", 64, "--height", 64, "--dtype", dtype, "--device", "cpu", "-o", options.folder / "kiln.png", "--overwrite"]
    call += ["--threads", options.threads] if options.threads else []
    call += ["--weight-cache", options.weight_cache] if options.weight_cache else []
    done = subprocess.run([str(word) for word in call], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(load|encode|denoise) ([\d.]+) s", done.stderr + done.stdout))
    return float(found["load"]) + float(found["encode"]), float(found["denoise"])


def kiln(options: argparse.Namespace, dtype: str) -> tuple[float, float]:
    start, first = kiln_call(options, dtype, 1)
    _, steps = kiln_call(options, dtype, STEPS)
    return start, start + first - (steps - first) / (STEPS - 1)


def diffusers(options: argparse.Namespace, dtype: str) -> tuple[float, float]:
    call = [*cpus(options), sys.executable, __file__, "--folder", str(options.folder), "--peer", dtype]
    call += ["--threads", str(options.threads)] if options.threads else []
    return tuple(json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout))


def peer(options: argparse.Namespace) -> None:
    """One process of diffusers: prints both times."""
    import torch
    from diffusers import StableDiffusionPipeline

    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[options.peer]
    begins, ends = [], []
    start = time.perf_counter()
    pipeline = StableDiffusionPipeline.from_pretrained(options.folder, torch_dtype=dtype, safety_checker=None)
    pipeline.unet.register_forward_pre_hook(lambda *_: begins.append(time.perf_counter()))
    pipeline.unet.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
    pipeline.set_progress_bar_config(disable=True)
    with torch.inference_mode():
        pipeline(PROMPT, num_inference_steps=STEPS, height=64, width=64, output_type="latent")
    steps = [end - begin for begin, end in zip(begins, ends)]
    to_start = begins[0] - start
    print(json.dumps([to_start, to_start + steps[0] - statistics.mean(steps[1:])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--dtypes", default="bf16,f32,f16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kiln", type=Path, default=ROOT / "target/release/kiln")
    parser.add_argument("--weight-cache", type=Path)
    parser.add_argument("--engines", default="kiln,diffusers")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options)
    if not (options.folder / "model_index.json").exists():
        make(options.folder)
    read(options.folder)
    engines = {"kiln": kiln, "diffusers": diffusers}
    names = options.engines.split(",")
    print("| dtype | engine | start: median s | min | max | end: median s | min | max |\n|---|---|---|---|---|---|---|---|")
    for dtype in options.dtypes.split(","):
        found = {name: [] for name in names}
        for name in names:
            engines[name](options, dtype)  # who follows a larger process pays less for clearing its memory
        for i in range(options.rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                found[name].append(engines[name](options, dtype))
        for name, times in found.items():
            columns = [(statistics.median(column), min(column), max(column)) for column in zip(*times)]
            cells = [f"{seconds:.2f}" for column in columns for seconds in column]
            print(f"| {dtype} | {name} | {' | '.join(cells)} |", flush=True)
        if len(names) == 2:
            ratios = [statistics.median(mine) / statistics.median(other) for mine, other in zip(*(zip(*found[n]) for n in names))]
            print(f"| {dtype} | {names[0]} to {names[1]} | {ratios[0]:.2f} | | | {ratios[1]:.2f} | | |", flush=True)


if __name__ == "__main__":
    main()
