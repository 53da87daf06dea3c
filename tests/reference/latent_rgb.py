"""Linear factors from latents to colors: least squares over images of a model, decoded by diffusers.

Prints the rows for `latent_rgb` of a model's kiln.json: one for each channel of the latents, and the offset; red, green and blue
from -1 to 1. Run: python latent_rgb.py ../../models/emoji
"""

import sys

import torch
from diffusers import StableDiffusionPipeline

PROMPTS = ["a red apple", "a blue car", "a green tree", "a smiling face", "a purple flower", "a yellow star", "a house", "a dog"]


def main(folder):
    pipe = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    latents = pipe(PROMPTS, num_inference_steps=12, guidance_scale=3.0, output_type="latent",
                   generator=torch.Generator().manual_seed(1)).images
    with torch.no_grad():
        images = torch.cat([pipe.vae.decode(one[None] / pipe.vae.config.scaling_factor).sample for one in latents])
    cell = images.shape[-1] // latents.shape[-1]
    colors = torch.nn.functional.avg_pool2d(images.clamp(-1, 1), cell).permute(0, 2, 3, 1).reshape(-1, 3)
    values = latents.permute(0, 2, 3, 1).reshape(-1, latents.shape[1])
    values = torch.cat([values, torch.ones(len(values), 1)], 1)
    factors = torch.linalg.lstsq(values.double(), colors.double()).solution
    rest = (values.double() @ factors - colors).square().mean() / colors.var()
    for row in factors:
        print([round(float(x), 3) for x in row])
    print(f"unexplained variance: {float(rest):.3f}", file=sys.stderr)


main(sys.argv[1])
