"""SDXL's sizes over the tiny models: `original_size`, `crops_coords_top_left`, `target_size` and the negative ones.

    python tests/reference/size_conditions.py

Writes `tests/fixtures/size_conditions/cases.json`, what a case has besides `COMMON` by the names of diffusers' arguments, and
`cases.safetensors` with the final latents `{name}` `(1, 4, 6, 8)`. Cases with `refiner` have the refiner of `refiner.py` for the
last part of the steps, with the same sizes but no target; `alone` is the refiner from an image.
"""

import torch
from diffusers import StableDiffusionXLImg2ImgPipeline, StableDiffusionXLPipeline

from common import FIXTURES, save_json_rows, save_safetensors
from refiner import image, pipeline

FOLDER = FIXTURES / "size_conditions"
WIDTH, HEIGHT, SWITCH, STRENGTH = 64, 48, 0.5, 0.6
COMMON = {"prompt": "a red apple", "num_inference_steps": 6, "guidance_scale": 5.0, "output_type": "latent"}
POSITIVE = {"original_size": [512, 768], "crops_coords_top_left": [16, 40], "target_size": [96, 120]}
NEGATIVE = {"negative_original_size": [200, 100], "negative_crops_coords_top_left": [0, 300], "negative_target_size": [64, 64]}
CASES = {
    "default": {},
    "positive": POSITIVE,
    "original": {"original_size": [1024, 256]},
    "crop": {"crops_coords_top_left": [0, 512]},
    "both": {**POSITIVE, **NEGATIVE, "negative_prompt": "blurry"},
    "zeros": {**POSITIVE, **NEGATIVE},
    "refiner": {**POSITIVE, **NEGATIVE, "refiner": True},
    "alone": {
        "original_size": [512, 768],
        "crops_coords_top_left": [16, 40],
        "negative_original_size": [200, 100],
        "negative_crops_coords_top_left": [0, 300],
        "alone": True,
    },
}


def run(case):
    """The final latents of a case."""
    case = dict(case)
    refined, alone = case.pop("refiner", False), case.pop("alone", False)
    sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in case.items()}
    common = {**COMMON, "generator": torch.Generator("cpu").manual_seed(42)}
    sampler = {"sampler": "euler", "schedule": "default"}
    if alone:
        pipe = pipeline(StableDiffusionXLImg2ImgPipeline, "refiner", sampler)
        return pipe(image=image(), strength=STRENGTH, **sizes, **common).images
    base = pipeline(StableDiffusionXLPipeline, "sdxl", sampler)
    end = {"denoising_end": SWITCH} if refined else {}
    latents = base(height=HEIGHT, width=WIDTH, **end, **sizes, **common).images
    if not refined:
        return latents
    pipe = pipeline(StableDiffusionXLImg2ImgPipeline, "refiner", sampler)
    return pipe(image=latents, denoising_start=SWITCH, **sizes, **common).images


@torch.no_grad()
def main():
    """Write the cases and the results."""
    FOLDER.mkdir(exist_ok=True)
    tensors = {name: run(case).contiguous() for name, case in CASES.items()}
    for name in ("positive", "original", "crop", "both"):
        assert (tensors[name] - tensors["default"]).std() > 1e-3 * tensors["default"].std(), name
    assert (tensors["both"] - tensors["zeros"]).std() > 0 and (tensors["zeros"] - tensors["positive"]).std() > 0
    save_json_rows(FOLDER / "cases.json", [{"name": name, **case} for name, case in CASES.items()])
    save_safetensors(FOLDER / "cases.safetensors", tensors)


if __name__ == "__main__":
    main()
