"""Parts of a prompt with places and blends of texts over the tiny models, by ComfyUI's rules (`comfyui.py`).

Writes `tests/fixtures/regions/mask.png`, `regions/cases.json`, an array of cases, each with the request as Kiln reads it, and
`regions/latents.safetensors` with the final latents `(1, 4, height / 8, width / 8)` in f32 as `{kind}.{name}`. The network is
diffusers' U-Net, called for each row and rectangle by itself with the row's own text length, and the sampler diffusers' DDIM.
"""

import numpy as np
import torch
from PIL import Image

import comfyui
from common import (
    FIXTURES,
    LONG_PROMPT,
    MODELS,
    chunk_count,
    encode_prompt,
    load_json,
    load_text,
    load_unet,
    make_sampler,
    save_json_rows,
    save_safetensors,
)

FOLDER = FIXTURES / "regions"
DEFAULTS = {
    "negative_prompt": "blurry", "seed": 42, "steps": 5, "cfg_scale": 6.0, "width": 144, "height": 104, "sampler": "ddim",
    "pad_conds": False, "comma_backtrack": 0,
}
LEFT, RIGHT = {"pixels": [0, 0, 80, 104]}, {"pixels": [64, 0, 80, 104], "strength": 1.5}
MASKED = {"mask": "mask.png"}
PARTS = "a red apple AND a green pear"
CASES = {
    "halves": {"prompt": PARTS, "regions": [LEFT, RIGHT]},
    "whole_and_parts": {
        "prompt": f"{PARTS} AND a table :0.5",
        "regions": [{"share": [0.2, 0.1, 0.45, 0.5]}, {"pixels": [40, 48, 1000, 1000], "strength": 2.0}, {}],
    },
    "same_rectangle": {"prompt": f"{PARTS} AND snow", "regions": [LEFT, {**LEFT, "strength": 0.3}, {}]},
    "masked": {"prompt": PARTS, "regions": [{}, {**MASKED, "strength": 3.0}]},
    "bounds": {"prompt": PARTS, "regions": [{}, {**MASKED, "bounds": True}]},
    "mask_in_rectangle": {"prompt": PARTS, "regions": [{}, {**MASKED, **LEFT}]},
    "blended": {"prompt": "a red apple", "regions": [{"blend": [{"text": "a green pear", "weight": 0.4}]}]},
    "blended_longer": {"prompt": "a red apple", "regions": [{"blend": [{"text": LONG_PROMPT, "weight": 0.25}]}]},
    "blended_shorter": {"prompt": LONG_PROMPT, "regions": [{"blend": [{"text": "a green pear", "weight": 0.5}]}]},
    "lengths": {"prompt": f"{LONG_PROMPT} AND a green pear", "regions": [{}, {**RIGHT, "blend": [{"text": "ice", "weight": 0.5}]}]},
}


def mask_image():
    """A soft mask in another shape than the images."""
    y, x = np.mgrid[0:20, 0:30]
    value = np.clip(1.6 - np.hypot((x - 18) / 9, (y - 9) / 6), 0, 1)
    return Image.fromarray((value * 255).round().astype(np.uint8))


def parts_of(case):
    """The texts of a prompt with their weights."""
    parts = [part.strip() for part in case["prompt"].split(" AND ")]
    return [(text.split(" :")[0], float((text.split(" :") + [1.0])[1])) for text in parts]


def run_case(unet, config, pairs, case):
    """The final latents of one case."""
    scheduler = make_sampler(config, "ddim")
    scheduler.set_timesteps(case["steps"])
    size = (case["height"] // 8, case["width"] // 8)
    latents = torch.randn((1, 4, *size), generator=torch.Generator("cpu").manual_seed(case["seed"]))
    latents = latents * scheduler.init_noise_sigma
    encode = lambda text: encode_prompt(pairs, text, chunk_count(pairs, text))  # noqa: E731
    mask = comfyui.unit(mask_image())
    rows = []
    for (text, weight), region in zip(parts_of(case), case["regions"], strict=True):
        encoded = encode(text)
        for other in region.get("blend", []):
            encoded = comfyui.blended(encoded, encode(other["text"]), 1.0 - other["weight"])
        area, strengths = comfyui.placed(region, size, mask if "mask" in region else None)
        rows.append((encoded, area, strengths * weight))
    none = comfyui.with_rectangles_of(rows, encode(case["negative_prompt"]))
    pixels = [case["height"], case["width"]]
    time_ids = torch.tensor([[*pixels, 0, 0, *pixels]], dtype=torch.float32)
    for timestep in scheduler.timesteps:

        def predict(x, text):
            context, pooled = text
            added = None if pooled is None else {"text_embeds": pooled, "time_ids": time_ids}
            return unet(x, timestep, encoder_hidden_states=context, added_cond_kwargs=added).sample  # noqa: B023

        x = scheduler.scale_model_input(latents, timestep)
        uncond, cond = (comfyui.averaged(predict, x, texts) for texts in (none, rows))
        latents = scheduler.step(uncond + (cond - uncond) * case["cfg_scale"], timestep, latents).prev_sample
    return latents


def main():
    """Write the mask and the cases."""
    FOLDER.mkdir(exist_ok=True)
    mask_image().save(FOLDER / "mask.png")
    rows, tensors = [], {}
    for kind in ("sd1", "sdxl"):
        pairs = load_text(kind)
        unet = load_unet(MODELS / kind / "unet")
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        for name, changes in CASES.items():
            case = {**DEFAULTS, **changes}
            tensors[f"{kind}.{name}"] = run_case(unet, config, pairs, case)
            rows.append({"kind": kind, "name": name, "request": case})
            print(kind, name, float(tensors[f"{kind}.{name}"].std()))
    save_json_rows(FOLDER / "cases.json", rows)
    save_safetensors(FOLDER / "latents.safetensors", tensors)


if __name__ == "__main__":
    main()
