"""Images to images over the tiny models: final latents of diffusers' image-to-image and inpainting pipelines.

Writes `tests/fixtures/image_to_image.json`, an array of cases, and `image_to_image.safetensors` with the tensors `image`
`(1, 3, 64, 64)` from -1 to 1 and `mask` `(1, 1, 64, 64)` of 0 and 1, and `{kind}.{name}` for each case: the latents
`(images, 4, 8, 8)` in f32, as `output_type="latent"` gives them. A case with `"masked": true` is inpainting with a network
of four channels.
"""

import torch
from diffusers import (
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
)

from common import FIXTURES, MODELS, load_json, load_text, make_sampler, save_json_rows, save_safetensors
from pipeline import load_pipeline

SIZE = 64
KINDS = {
    "sd1": (StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline),
    "sd2v": (StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline),
    "sdxl": (StableDiffusionXLImg2ImgPipeline, StableDiffusionXLInpaintPipeline),
}
DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 10,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "ddim",
    "strength": 0.6,
    "masked": False,
}
CASES = {
    "ddim": {},
    "ddim_whole": {"strength": 1.0},
    "euler": {"sampler": "euler"},
    "euler_whole": {"sampler": "euler", "strength": 1.0},
    "euler_a": {"sampler": "euler_a", "images": 2},
    "dpmpp_2m": {"sampler": "dpmpp_2m"},
    "dpmpp_2m_whole": {"sampler": "dpmpp_2m", "strength": 1.0},
    "heun": {"sampler": "heun"},
    "unipc": {"sampler": "unipc", "strength": 0.35},
    "masked_ddim": {"masked": True},
    "masked_ddim_whole": {"masked": True, "strength": 1.0},
    "masked_euler_a": {"masked": True, "sampler": "euler_a"},
    "masked_heun": {"masked": True, "sampler": "heun"},
    "masked_dpmpp_2m": {"masked": True, "sampler": "dpmpp_2m"},
}


def inputs():
    """An image with structure in every channel, and a mask whose edge lies between latents."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    channels = [torch.sin(0.05 * (c + 1) * x + 0.03 * (3 - c) * y + c) for c in range(3)]
    image = torch.stack(channels)[None].to(torch.float32) * 0.9
    mask = torch.zeros((1, 1, SIZE, SIZE))
    mask[:, :, 12:44, 20:61] = 1.0
    return image, mask


def run_case(pipes, config, case, image, mask):
    """The final latents of one case. Scheduler and generators are made afresh."""
    pipe = pipes[case["masked"]]
    pipe.scheduler = make_sampler(config, case["sampler"])
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    arguments = {"mask_image": mask, "height": SIZE, "width": SIZE} if case["masked"] else {}
    return pipe(
        prompt=case["prompt"],
        image=image,
        strength=case["strength"],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        num_images_per_prompt=case["images"],
        generator=generators,
        output_type="latent",
        **arguments,
    ).images


def main():
    """Write the cases of every kind."""
    image, mask = inputs()
    rows, tensors = [], {"image": image, "mask": mask}
    for kind, classes in KINDS.items():
        base = load_pipeline(kind, load_text(kind))
        parts = dict(base.components)
        extra = {} if kind == "sdxl" else {"requires_safety_checker": False}
        if kind == "sdxl":
            zeros = load_json(MODELS / kind / "model_index.json")["force_zeros_for_empty_prompt"]
            extra = {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}
        pipes = [cls(**parts, **extra) for cls in classes]
        for pipe in pipes:
            pipe.set_progress_bar_config(disable=True)
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        for name, changes in CASES.items():
            case = {"kind": kind, "name": name, **DEFAULTS, **changes}
            tensors[f"{kind}.{name}"] = run_case(pipes, config, case, image, mask)
            rows.append(case)
    save_json_rows(FIXTURES / "image_to_image.json", rows)
    save_safetensors(FIXTURES / "image_to_image.safetensors", tensors)
