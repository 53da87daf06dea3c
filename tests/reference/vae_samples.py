"""Samples of the encoders' distributions: what diffusers' `DiagonalGaussianDistribution` draws with given noise.

Reads `tests/fixtures/models` and the images of `stages/vae_*.safetensors`; writes `stages/vae_samples.safetensors`. Run by
itself: python tests/reference/vae_samples.py
"""

from pathlib import Path
from unittest import mock

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


@torch.no_grad()
def main():
    tensors = {}
    for kind, folder in (("sd1", "sd1/vae"), ("plain", "vae_plain")):
        vae = AutoencoderKL.from_pretrained(FIXTURES / "models" / folder, torch_dtype=torch.float32).eval()
        image = load_file(FIXTURES / f"stages/vae_{kind}.safetensors")["e0.image"]
        distribution = vae.encode(image).latent_dist
        noise = torch.randn(distribution.mean.shape, generator=torch.Generator().manual_seed(1))
        with mock.patch("diffusers.models.autoencoders.vae.randn_tensor", lambda *_, **__: noise):
            sample = distribution.sample()
        tensors |= {f"{kind}.noise": noise, f"{kind}.std": distribution.std, f"{kind}.sample": sample}
    save_file({key: value.contiguous() for key, value in tensors.items()}, FIXTURES / "stages/vae_samples.safetensors")


if __name__ == "__main__":
    main()
