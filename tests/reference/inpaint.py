"""Inpainting of image files over the tiny models: results of diffusers' pipelines from files to pixels.

Writes `tests/fixtures/inpaint/image.png` (96x80, RGB), `mask.png` (96x80, gray with a soft edge), `cases.json`, an array of
cases, and `results.safetensors` with `{kind}.{name}` for each. A case with `"area"` has `padding_mask_crop` of that many
pixels; its result is the image `(80, 96, 3)` in u8 that the pipeline gives, with the input pasted around the mask. Other
results are latents `(images, 4, 8, 8)` in f32.

A case with `"channels": 9` has a U-Net of nine channels: that of the folder with `conv_in` extended by five input channels,
where channel c has half of the weights of channel c modulo 4.
"""

import numpy as np
import PIL.Image
import torch
from diffusers import StableDiffusionInpaintPipeline, StableDiffusionXLInpaintPipeline

from common import FIXTURES, MODELS, load_json, load_text, make_sampler, save_json_rows, save_safetensors
from pipeline import load_pipeline

SIZE = 64
FOLDER = FIXTURES / "inpaint"
DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 10,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "ddim",
    "strength": 0.6,
    "channels": 4,
    "area": None,
}
CASES = {
    "area": {"area": 4},
    "area_euler_a": {"area": 20, "sampler": "euler_a", "strength": 0.8},
    "whole": {"sampler": "euler"},
    "channels": {"channels": 9},
    "channels_whole": {"channels": 9, "strength": 1.0},
    "channels_euler_a": {"channels": 9, "sampler": "euler_a", "strength": 0.9},
    "channels_euler_a_whole": {"channels": 9, "sampler": "euler_a", "strength": 1.0},
    "channels_area": {"channels": 9, "area": 4},
}
KINDS = {
    "sd1": StableDiffusionInpaintPipeline,
    "sd2v": StableDiffusionInpaintPipeline,
    "sdxl": StableDiffusionXLInpaintPipeline,
}


def inputs():
    """A picture with structure in every channel, and a soft mask away from its middle."""
    y, x = np.mgrid[0:80, 0:96].astype(np.float64)
    waves = [np.sin(0.09 * (c + 1) * x + 0.05 * (3 - c) * y + c) for c in range(3)]
    image = np.stack([np.round(127.5 + 110 * wave) for wave in waves], axis=-1).astype(np.uint8)
    distance = np.sqrt(((x - 60) / 1.4) ** 2 + (y - 34) ** 2)
    mask = np.clip(np.round((22 - distance) * 51), 0, 255).astype(np.uint8)
    return PIL.Image.fromarray(image, "RGB"), PIL.Image.fromarray(mask, "L")


def widen(unet):
    """The same network with five more input channels."""
    old = unet.conv_in
    conv = torch.nn.Conv2d(9, old.out_channels, old.kernel_size, padding=old.padding)
    more = torch.cat([old.weight[:, c % 4 : c % 4 + 1] * 0.5 for c in range(4, 9)], dim=1)
    conv.weight = torch.nn.Parameter(torch.cat([old.weight, more], dim=1))
    conv.bias = old.bias
    unet.conv_in = conv
    unet.register_to_config(in_channels=9)
    return unet


def run_case(pipe, config, case, image, mask):
    """The result of one case."""
    pipe.scheduler = make_sampler(config, case["sampler"])
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    is_area = case["area"] is not None
    result = pipe(
        prompt=case["prompt"],
        image=image,
        mask_image=mask,
        height=SIZE,
        width=SIZE,
        strength=case["strength"],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        generator=generators,
        padding_mask_crop=case["area"],
        output_type="pil" if is_area else "latent",
    ).images
    return torch.from_numpy(np.array(result[0])) if is_area else result


def main():
    """Write the files and the cases of every kind."""
    FOLDER.mkdir(exist_ok=True)
    image, mask = inputs()
    image.save(FOLDER / "image.png")
    mask.save(FOLDER / "mask.png")
    rows, tensors = [], {}
    for kind, cls in KINDS.items():
        zeros = load_json(MODELS / kind / "model_index.json").get("force_zeros_for_empty_prompt")
        extra = {"requires_safety_checker": False}
        if kind == "sdxl":
            extra = {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        for channels in (4, 9):
            parts = dict(load_pipeline(kind, load_text(kind)).components)
            if channels == 9:
                parts["unet"] = widen(parts["unet"])
            pipe = cls(**parts, **extra)
            pipe.set_progress_bar_config(disable=True)
            for name, changes in CASES.items():
                case = {"kind": kind, "name": name, **DEFAULTS, **changes}
                if case["channels"] == channels and (kind == "sd1" or case["area"] is None):
                    tensors[f"{kind}.{name}"] = run_case(pipe, config, case, image, mask)
                    rows.append(case)
    save_json_rows(FOLDER / "cases.json", rows)
    save_safetensors(FOLDER / "results.safetensors", tensors)
