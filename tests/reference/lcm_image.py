"""Image-to-image by a latent consistency model with guidance inside: diffusers' `LatentConsistencyModelImg2ImgPipeline`.

    python tests/reference/lcm_image.py

The model is that of `lcm.py`, the input `tests/fixtures/inpaint/image.png` at 64x64. Writes `tests/fixtures/lcm/image.json`, what a
case has besides the pipeline's defaults, with the timesteps of its calls, and `image.safetensors` with the final latents.
"""

import torch
from diffusers import LatentConsistencyModelImg2ImgPipeline, LCMScheduler

from common import MODELS, load_json, load_text, load_unet, load_vae, save_json_rows, save_safetensors
from lcm import LCM
from refiner import image

CASES = {
    "defaults": {"strength": 0.8},
    "six_steps": {"strength": 0.7, "steps": 6},
    "all": {"strength": 1.0, "steps": 3},
    "little": {"strength": 0.1, "steps": 5},
    "weak": {"strength": 0.5, "steps": 4, "cfg_scale": 2.0, "images": 2},
}


def run(pipe, case):
    """The final latents of a case."""
    generators = [torch.Generator("cpu").manual_seed(42 + i) for i in range(case.get("images", 1))]
    more = {"num_inference_steps": case["steps"]} if "steps" in case else {}
    more |= {"guidance_scale": case["cfg_scale"]} if "cfg_scale" in case else {}
    return pipe(
        "a red apple",
        image=image(),
        strength=case["strength"],
        num_images_per_prompt=len(generators),
        generator=generators,
        output_type="latent",
        **more,
    ).images


@torch.no_grad()
def main():
    """Write the cases and the results."""
    [(tokenizer, text_encoder)] = load_text("sd1")
    pipe = LatentConsistencyModelImg2ImgPipeline(
        vae=load_vae(MODELS / "sd1" / "vae"),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=load_unet(LCM / "unet"),
        scheduler=LCMScheduler.from_config(load_json(LCM / "scheduler" / "scheduler_config.json")),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    rows, tensors = [], {}
    for name, case in CASES.items():
        tensors[name] = run(pipe, case).contiguous()
        rows.append({"name": name, **case, "timesteps": pipe.scheduler.timesteps.tolist()})
    save_json_rows(LCM / "image.json", rows)
    save_safetensors(LCM / "image.safetensors", tensors)


if __name__ == "__main__":
    main()
