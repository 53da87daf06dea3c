"""The emoji model's latents and mean colors, through diffusers' own pipeline.

Writes `tests/fixtures/emoji.json` and `emoji.safetensors`: the tensor `{name}` holds the latents `(1, 4, 32, 32)`; the
decoded image is only summed up in the JSON, as mean red, green and blue in 0..1, of the whole and of the
middle quarter.
"""

import torch
from diffusers import StableDiffusionPipeline

from common import FIXTURES, save_json_rows, save_safetensors

PROMPTS = ["a red apple", "rocket", "sunflower", "green heart"]
SETTINGS = {"seed": 42, "steps": 20, "cfg_scale": 3.0, "width": 256, "height": 256}


def colors(image):
    """Mean of each channel of `(1, 3, h, w)`."""
    return [round(v, 5) for v in image.mean(dim=(0, 2, 3)).tolist()]


def main(model):
    """Run the pipeline folder `model`."""
    pipe = StableDiffusionPipeline.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    assert {p.dtype for part in (pipe.unet, pipe.vae, pipe.text_encoder) for p in part.parameters()} == {torch.float32}
    rows, tensors = [], {}
    for prompt in PROMPTS:
        latents = pipe(
            prompt,
            num_inference_steps=SETTINGS["steps"],
            guidance_scale=SETTINGS["cfg_scale"],
            width=SETTINGS["width"],
            height=SETTINGS["height"],
            generator=torch.Generator("cpu").manual_seed(SETTINGS["seed"]),
            output_type="latent",
        ).images
        image = pipe.image_processor.postprocess(
            pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample, output_type="pt"
        )
        name = prompt.replace(" ", "_")
        tensors[name] = latents
        rows.append(
            {
                "name": name,
                "prompt": prompt,
                "negative_prompt": None,
                **SETTINGS,
                "sampler": None,
                "schedule": "default",
                "mean_rgb": colors(image),
                "middle_rgb": colors(image[:, :, 64:192, 64:192]),
            }
        )
    save_json_rows(FIXTURES / "emoji.json", rows)
    save_safetensors(FIXTURES / "emoji.safetensors", tensors)
