"""Hires fix over the tiny models: latents after the second pass, made of diffusers' pipelines.

Writes into `tests/fixtures/hires`:

- `cases.json`, an array of cases, and `cases.safetensors` with `{kind}.{name}` for each: the final latents
  `(images, 4, h, w)` in f32. The first pass is text-to-image; its latents are interpolated, or its pixels are enlarged
  with Pillow or spandrel and encoded; the second pass is image-to-image of the result with a fresh generator.
- `interpolate.json`: `torch.nn.functional.interpolate` of small maps, in every mode that hires fix has.

With the rule `a1111` (and `comfy`) the second pass runs `steps` steps, the last ones of `int(steps / strength)`:
AUTOMATIC1111 v1.10, `setup_img2img_steps` of `modules/sd_samplers_common.py` with `steps` given, and `sample_img2img` of
`modules/sd_samplers_kdiffusion.py` (ComfyUI: `set_steps` of `comfy/samplers.py`). Pixels are rounded down to bytes and the
encoder's mean is taken (`sample_hr_pass` of `modules/processing.py`; its sample depends on no seed).
"""

import numpy as np
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionXLImg2ImgPipeline
from PIL import Image
from spandrel import ModelLoader

from common import FIXTURES, MODELS, load_json, load_text, make_sampler, save_json_rows, save_safetensors
from pipeline import load_pipeline

FOLDER = FIXTURES / "hires"
FACTOR = 8
KINDS = {"sd1": StableDiffusionImg2ImgPipeline, "sdxl": StableDiffusionXLImg2ImgPipeline}
LATENT = {
    "latent": ("bilinear", False),
    "latent-antialiased": ("bilinear", True),
    "latent-bicubic": ("bicubic", False),
    "latent-bicubic-antialiased": ("bicubic", True),
    "latent-nearest": ("nearest", False),
    "latent-nearest-exact": ("nearest-exact", False),
}
DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 6,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "euler",
    "size": [32, 32],
    "hires_size": [48, 48],
    "rule": "a1111",
    "upscaler": "latent",
    "hires_steps": None,
    "strength": 0.7,
    "hires_prompt": None,
    "hires_cfg_scale": None,
    "hires_sampler": None,
}
CASES = {
    "euler": {},
    "double": {"hires_size": [64, 64], "strength": 1.0},
    "dpmpp_2m": {"sampler": "dpmpp_2m", "upscaler": "latent-bicubic", "hires_steps": 4},
    "euler_a": {"sampler": "euler_a", "upscaler": "latent-nearest", "images": 2, "strength": 0.55},
    "comfy": {"upscaler": "latent-nearest-exact", "rule": "comfy", "strength": 0.45},
    "diffusers_ddim": {"sampler": "ddim", "upscaler": "latent-antialiased", "rule": "diffusers", "hires_steps": 9},
    "diffusers_dpmpp_2m": {"sampler": "dpmpp_2m", "rule": "diffusers", "hires_steps": 10, "strength": 0.6},
    "other": {"hires_prompt": "a blue pear", "hires_cfg_scale": 2.5, "hires_sampler": "dpmpp_2m"},
    "cut": {"size": [32, 40], "hires_size": [56, 40], "upscaler": "latent-bicubic-antialiased"},
    "lanczos": {"upscaler": "lanczos", "strength": 0.4},
    "lanczos_cut": {"upscaler": "lanczos", "size": [32, 40], "hires_size": [56, 40], "images": 2},
    "diffusers_lanczos": {"upscaler": "lanczos", "rule": "diffusers", "sampler": "euler_a", "images": 2},
    "network": {"upscaler": "compact_x2.pth", "hires_size": [64, 64], "sampler": "dpmpp_2m"},
}


def covering(size, target):
    """The size to which the first pass is enlarged, and what is cut off in latents (`calculate_target_resolution`)."""
    (w, h), (tw, th) = size, target
    up = (tw, tw * h // w) if w / h < tw / th else (th * w // h, th)
    cut = [(side - wanted) // FACTOR for side, wanted in zip(up, target)]
    return [side // FACTOR for side in up], cut


def bytes_of(pixels, rule):
    """An image `(3, h, w)` of -1 to 1 as Pillow's."""
    values = (pixels / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).numpy() * 255
    return Image.fromarray((values.round() if rule == "diffusers" else values).astype(np.uint8))


def enlarge(image, upscaler, size):
    """An image in another size."""
    if upscaler != "lanczos":
        network = ModelLoader().load_from_file(FIXTURES / "upscale" / upscaler)
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
        image = Image.fromarray((network(planes)[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8))
    return image if list(image.size) == size else image.resize(size, Image.LANCZOS)


def run_case(pipes, config, case):
    """The final latents of one case."""
    text, image = pipes
    sample = lambda name: make_sampler(config, name)
    generators = lambda: [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    text.scheduler = sample(case["sampler"])
    latents = text(
        prompt=case["prompt"],
        width=case["size"][0],
        height=case["size"][1],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        num_images_per_prompt=case["images"],
        generator=generators(),
        output_type="latent",
    ).images
    (w, h), (cut_x, cut_y) = covering(case["size"], case["hires_size"])
    vae, fresh, strength = image.vae, generators(), case["strength"]
    if case["upscaler"] in LATENT:
        mode, antialias = LATENT[case["upscaler"]]
        latents = torch.nn.functional.interpolate(latents, size=(h, w), mode=mode, antialias=antialias)
    else:
        decoded = vae.decode(latents / vae.config.scaling_factor).sample
        pictures = [enlarge(bytes_of(one, case["rule"]), case["upscaler"], [w * FACTOR, h * FACTOR]) for one in decoded]
        encoded = []
        for picture, generator in zip(pictures, fresh):
            planes = 2 * (torch.from_numpy(np.array(picture)).float() / 255).permute(2, 0, 1)[None] - 1
            posterior = vae.encode(planes).latent_dist
            encoded.append(posterior.sample(generator) if case["rule"] == "diffusers" else posterior.mean)
        latents = torch.cat(encoded) * vae.config.scaling_factor
    h, w = latents.shape[2:]
    latents = latents[:, :, cut_y // 2 : h - (cut_y + 1) // 2, cut_x // 2 : w - (cut_x + 1) // 2]
    steps = case["hires_steps"] or case["steps"]
    total = steps
    if case["rule"] != "diffusers":
        total = int(steps / (min(strength, 0.999) if case["rule"] == "a1111" else strength))
        strength = (steps + 0.5) / total if total > steps else 1.0
    image.scheduler = sample(case["hires_sampler"] or case["sampler"])
    return image(
        prompt=case["hires_prompt"] or case["prompt"],
        image=latents,
        strength=strength,
        num_inference_steps=total,
        guidance_scale=case["hires_cfg_scale"] or case["cfg_scale"],
        num_images_per_prompt=case["images"],
        generator=fresh,
        output_type="latent",
    ).images


def interpolated():
    """Small maps in every mode."""
    rows = []
    for name, (mode, antialias) in LATENT.items():
        for (h, w), to in [((3, 4), (7, 6)), ((4, 5), (3, 3))]:
            values = [round(2 * np.sin(1.7 * i + 0.3 * i * i), 2) for i in range(h * w)]
            tensor = torch.tensor(values, dtype=torch.float32).reshape(1, 1, h, w)
            result = torch.nn.functional.interpolate(tensor, size=to, mode=mode, antialias=antialias)
            results = [round(value, 6) for value in result.flatten().tolist()]
            rows.append({"filter": name, "from": [h, w], "to": list(to), "values": values, "results": results})
    return rows


def main():
    """Write the cases of every kind."""
    rows, tensors = [], {}
    for kind, cls in KINDS.items():
        text = load_pipeline(kind, load_text(kind))
        extra = {"requires_safety_checker": False}
        if kind == "sdxl":
            zeros = load_json(MODELS / kind / "model_index.json")["force_zeros_for_empty_prompt"]
            extra = {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}
        pipes = [text, cls(**text.components, **extra)]
        for pipe in pipes:
            pipe.set_progress_bar_config(disable=True)
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        for name, changes in CASES.items():
            case = {"kind": kind, "name": name, **DEFAULTS, **changes}
            tensors[f"{kind}.{name}"] = run_case(pipes, config, case)
            rows.append({key: value for key, value in case.items() if value is not None})
    save_json_rows(FOLDER / "cases.json", rows)
    save_safetensors(FOLDER / "cases.safetensors", tensors)
    save_json_rows(FOLDER / "interpolate.json", interpolated())


if __name__ == "__main__":
    main()
