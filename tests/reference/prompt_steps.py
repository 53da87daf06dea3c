"""Prompts that change during a run, by AUTOMATIC1111's count of steps (version 1.10), over the tiny models.

    python tests/reference/prompt_steps.py    # k-diffusion 0.1.1.post1 and torchsde 0.2.6 besides the pinned packages

The samplers are k-diffusion's own functions. What is the web UI's is written in other words, each with its source:

- `total_steps` of modules/sd_samplers_common.py: twice the steps for samplers of second order.
- `setup_conds` of modules/processing.py: schedules of prompts are made over that number; `calculate_hr_conds`: those of the
  second pass over its own number, with whole times counted on from the first pass's number and shares from 1.
- `CFGDenoiser.forward` of modules/sd_samplers_cfg_denoiser.py with `reconstruct_cond_batch` of modules/prompt_parser.py: each
  call of the denoiser takes the first text whose end is not less than the number of calls before it in this pass, or else
  the first text.

Writes `tests/fixtures/prompt_steps/cases.json`, what differs from `DEFAULTS`, and `cases.safetensors` with the final latents
`{name}` `(1, 4, h, w)`. A case with `strength` begins with the image of `tests/fixtures/inpaint`; one with `hires_size` has a
second pass over its interpolated latents.
"""

import importlib
import re
import sys
import types
from pathlib import Path

import numpy as np
import torch

# The package's own __init__ imports many packages. Two of its modules are sufficient, and they do not use torchvision.
for name in ("torchvision", "torchvision.transforms"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchvision.transforms"].functional = None
package = types.ModuleType("k_diffusion")
package.__path__ = [str(Path(path) / "k_diffusion") for path in sys.path if (Path(path) / "k_diffusion").is_dir()]
sys.modules["k_diffusion"] = package
K = importlib.import_module("k_diffusion.sampling")
external = importlib.import_module("k_diffusion.external")
for name in ("torchvision", "torchvision.transforms"):
    del sys.modules[name]

from PIL import Image  # noqa: E402

from common import (  # noqa: E402
    FIXTURES,
    MODELS,
    encode_prompt,
    load_text,
    load_unet,
    load_vae,
    save_json_rows,
    save_safetensors,
)

FOLDER = FIXTURES / "prompt_steps"
SECOND_ORDER = {"heun", "dpm2", "dpm2_a", "dpmpp_2s_a", "dpmpp_sde"}
DISCARD = {"dpm2", "dpm2_a"}
FUNCTIONS = {
    "euler": K.sample_euler,
    "heun": K.sample_heun,
    "dpm2": K.sample_dpm_2,
    "dpm2_a": K.sample_dpm_2_ancestral,
    "dpmpp_2s_a": K.sample_dpmpp_2s_ancestral,
    "dpmpp_sde": K.sample_dpmpp_sde,
}
DEFAULTS = {
    "kind": "sd2v",
    "prompt": "a fox",
    "negative_prompt": "blurry",
    "sampler": "heun",
    "steps": 6,
    "seed": 42,
    "cfg_scale": 5.0,
    "size": [64, 64],
    "strength": None,
    "hires_size": None,
    "hires_steps": None,
}
SHARE, STEP, LATE, ALTERNATE = "a fox [cat:dog:0.5]", "a fox [cat:dog:3]", "a fox [cat:dog:9]", "a [cat|dog]"
CASES = {
    **{
        f"{sampler}_{name}": {"sampler": sampler, "prompt": prompt}
        for sampler in ("heun", "dpm2", "dpmpp_2s_a")
        for name, prompt in (("share", SHARE), ("step", STEP), ("late", LATE), ("alternate", ALTERNATE))
    },
    "dpm2_a": {"sampler": "dpm2_a", "prompt": STEP},
    "dpmpp_sde": {"sampler": "dpmpp_sde", "prompt": SHARE},
    "euler": {"sampler": "euler", "prompt": STEP},
    "negative": {"negative_prompt": "a [bird|fish]", "prompt": LATE},
    "sd1": {"kind": "sd1", "prompt": STEP},
    "sdxl": {"kind": "sdxl", "prompt": SHARE},
    "image": {"prompt": STEP, "strength": 0.6},
    "image_share": {"prompt": SHARE, "strength": 0.9, "sampler": "dpm2"},
    "image_euler": {"prompt": STEP, "strength": 0.6, "sampler": "euler", "steps": 8},
    "hires": {"prompt": "a fox [cat:dog:15]", "size": [32, 32], "hires_size": [48, 48]},
    "hires_share": {"prompt": "a [fox:cat:0.5] [cat:dog:1.5]", "size": [32, 32], "hires_size": [48, 48], "hires_steps": 4},
}


def time(text, steps, before):
    """The end of a range: `collect_steps` of modules/prompt_parser.py."""
    value = float(text)
    if "." in text:
        value = (value - (0 if before is None else 1)) * steps
    else:
        value -= before or 0
    return min(steps, int(value))


def schedule(prompt, steps, before=None):
    """The ends of ranges and their texts; `prompt` has plain constructs, none within another."""
    found = re.findall(r"\[[^]]*\]", prompt)
    ends = {steps}
    for construct in found:
        if "|" in construct:
            ends |= set(range(1, steps + 1))
        else:
            ends |= {end for end in [time(construct[1:-1].split(":")[2], steps, before)] if end >= 1}

    def text_at(end):
        def replaced(match):
            inner = match.group()[1:-1]
            if "|" in inner:
                return inner.split("|")[(end - 1) % (inner.count("|") + 1)]
            early, late, when = inner.split(":")
            return early if end <= time(when, steps, before) else late

        return re.sub(r"\[[^]]*\]", replaced, prompt)

    return [(end, text_at(end)) for end in sorted(ends)]


def at(ranges, call):
    """The text of a call."""
    return next((text for end, text in ranges if call <= end), ranges[0][1])


class Model:
    """A tiny model as the web UI runs it."""

    def __init__(self, kind):
        self.kind, self.unet, self.vae = kind, load_unet(MODELS / kind / "unet"), load_vae(MODELS / kind / "vae")
        self.pairs = load_text(kind)
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
        products = torch.cumprod(1 - betas, 0).float()
        self.levels = external.DiscreteSchedule(((1 - products) / products) ** 0.5, quantize=False)

    def sigmas(self, sampler, steps):
        """`get_sigmas` of modules/sd_samplers_kdiffusion.py with the schedule Karras."""
        ends = self.levels.sigmas[0].item(), self.levels.sigmas[-1].item()
        if sampler in DISCARD:
            sigmas = K.get_sigmas_karras(steps + 1, *ends)
            return torch.cat([sigmas[:-2], sigmas[-1:]])
        return K.get_sigmas_karras(steps, *ends)

    def denoiser(self, case, ranges, size):
        """`CFGDenoiser` over `CompVisDenoiser` or `CompVisVDenoiser`."""
        calls = 0

        def predict(x, t, texts):
            contexts, pooled = zip(*[encode_prompt(self.pairs, text) for text in texts])
            added = None
            if self.kind == "sdxl":
                (width, height), rows = size, len(texts)
                ids = torch.tensor([[height, width, 0, 0, height, width]] * rows, dtype=torch.float32)
                added = {"text_embeds": torch.cat(pooled), "time_ids": ids}
            both = torch.cat([x, x])
            return self.unet(both, t, encoder_hidden_states=torch.cat(contexts), added_cond_kwargs=added).sample

        def denoise(x, sigma):
            nonlocal calls
            sigma = sigma.flatten()[0]
            norm = (sigma**2 + 1) ** 0.5
            answer = predict(x / norm, self.levels.sigma_to_t(sigma.view(1))[0], [at(ranges[0], calls), at(ranges[1], calls)])
            without, with_prompt = answer.chunk(2)
            guided = without + (with_prompt - without) * case["cfg_scale"]
            calls += 1
            return x / norm**2 - guided * sigma / norm if self.kind == "sd2v" else x - guided * sigma

        return denoise

    def encode(self, size):
        """The mean of the input's latents."""
        image = Image.open(FIXTURES / "inpaint" / "image.png").convert("RGB").resize(tuple(size), Image.LANCZOS)
        pixels = torch.from_numpy(np.moveaxis(np.array(image).astype(np.float32) / 255.0, 2, 0)[None]) * 2 - 1
        return self.vae.encode(pixels).latent_dist.mode() * self.vae.config.scaling_factor


def sample(model, case, ranges, x, sigmas, generator, size):
    """A run of a sampler over `sigmas` from `x`."""
    name, more = case["sampler"], {}
    if name == "dpmpp_sde":
        low, high = sigmas[sigmas > 0].min(), sigmas.max()
        more["noise_sampler"] = K.BrownianTreeNoiseSampler(x, low, high, seed=[case["seed"]])
    if name in ("dpm2_a", "dpmpp_2s_a"):
        # `TorchHijack`: later noise comes from the generator of the first.
        more["noise_sampler"] = lambda *_: torch.randn(x.shape[1:], generator=generator)[None]
    denoise = model.denoiser(case, ranges, size)
    return FUNCTIONS[name](denoise, x, sigmas, disable=True, **more)


def total(case, steps):
    """`total_steps`."""
    return 2 * steps if case["sampler"] in SECOND_ORDER else steps


def run(case):
    """The final latents of a case."""
    model = Model(case["kind"])
    steps, prompts = case["steps"], (case["negative_prompt"], case["prompt"])
    generator = torch.Generator().manual_seed(case["seed"])
    shape = (4, case["size"][1] // 8, case["size"][0] // 8)
    noise = torch.randn(shape, generator=generator)[None]
    ranges = [schedule(prompt, total(case, steps)) for prompt in prompts]
    sigmas = model.sigmas(case["sampler"], steps)
    if case["strength"] is None:
        x = noise * sigmas[0]
    else:
        # `sample_img2img`: the schedule's last steps, and calls are counted from 0.
        sigmas = sigmas[steps - int(min(case["strength"], 0.999) * steps) - 1 :]
        x = model.encode(case["size"]) + noise * sigmas[0]
    x = sample(model, case, ranges, x, sigmas, generator, case["size"])
    if case["hires_size"] is None:
        return x
    # `sample_hr_pass`, with a strength of 0.7: all of its steps, the last ones of `int(steps / 0.7)`.
    second = case["hires_steps"] or steps
    width, height = case["hires_size"]
    x = torch.nn.functional.interpolate(x, size=(height // 8, width // 8), mode="bilinear")
    all_steps = int(second / 0.7)
    sigmas = model.sigmas(case["sampler"], all_steps)[all_steps - second :]
    generator = torch.Generator().manual_seed(case["seed"])
    x = x + torch.randn(x.shape[1:], generator=generator)[None] * sigmas[0]
    ranges = [schedule(prompt, total(case, second), total(case, steps)) for prompt in prompts]
    return sample(model, case, ranges, x, sigmas, generator, case["hires_size"])


@torch.no_grad()
def main():
    """Write the cases and the results."""
    FOLDER.mkdir(exist_ok=True)
    tensors = {name: run({**DEFAULTS, **changes}).contiguous() for name, changes in CASES.items()}
    save_json_rows(FOLDER / "cases.json", [{"name": name, **changes} for name, changes in CASES.items()])
    save_safetensors(FOLDER / "cases.safetensors", tensors)


if __name__ == "__main__":
    main()
