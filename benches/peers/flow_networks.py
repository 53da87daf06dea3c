"""The transformers and text encoders of flow models for `diffusers_bench.py`: their classes and the inputs of a step.

A text has the length that Kiln measures: the usual one of T5 (and a chunk of CLIP for Stable Diffusion 3), 512 tokens for FLUX.2,
and the shortest text for Z-Image, which is filled to 32 rows.
"""

import argparse
from collections.abc import Callable

import torch
from diffusers import (
    AutoencoderKLFlux2,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    ZImageTransformer2DModel,
)
from transformers import Qwen3Config, Qwen3Model, T5Config, T5EncoderModel

TRANSFORMERS = {
    "sd3": SD3Transformer2DModel,
    "flux": FluxTransformer2DModel,
    "flux2": Flux2Transformer2DModel,
    "z_image": ZImageTransformer2DModel,
}
AUTOENCODERS = {"AutoencoderKLFlux2": AutoencoderKLFlux2}
ENCODERS = {"T5EncoderModel": (T5Config, T5EncoderModel), "Qwen3ForCausalLM": (Qwen3Config, Qwen3Model)}
# The noise level in the middle, as diffusers' pipelines give it to the networks.
SIGMA = 0.5


def is_flow(preset: dict) -> bool:
    return preset["family"] in TRANSFORMERS


def text_rows(preset: dict) -> int:
    """Rows of text in a step."""
    dev = preset["denoiser"].get("guidance_embeds", False)
    return {"sd3": 77 + 256, "flux": 512 if dev else 256, "flux2": 512, "z_image": 32}[preset["family"]]


def tokens(preset: dict) -> int:
    """Tokens of a text in an encoder of language models."""
    return {"sd3": 256, "z_image": 32}.get(preset["family"], text_rows(preset))


def positions(axes: int, rows: int, columns: int) -> tuple[list, list]:
    """The ids of text rows and of image rows."""
    text = [[0] * (axes - 1) + [row if axes == 4 else 0] for row in range(rows)]
    image = [[0, y, x] + [0] * (axes - 3) for y in range(columns[1]) for x in range(columns[0])]
    return text, image


def step_call(preset: dict, network: torch.nn.Module, options: argparse.Namespace, normal: Callable) -> Callable:
    """One evaluation of the transformer for all rows of a step."""
    n = options.batch * (2 if preset.get("guided", True) else 1)
    h16, w16 = preset["height"] // 16, preset["width"] // 16
    rows, config = text_rows(preset), network.config
    time = torch.full((n,), SIGMA, device=options.device)
    if preset["family"] == "sd3":
        latents = normal(options, n, config.in_channels, 2 * h16, 2 * w16)
        text, pooled = normal(options, n, rows, config.joint_attention_dim), normal(options, n, config.pooled_projection_dim)
        return lambda: network(latents, text, pooled, 1000 * time, return_dict=False)[0]
    if preset["family"] == "z_image":
        latents = list(normal(options, n, config.in_channels, 1, 2 * h16, 2 * w16))
        text = list(normal(options, n, rows, config.cap_feat_dim))
        return lambda: network(latents, time, text, return_dict=False)[0][0]
    latents = normal(options, n, h16 * w16, config.in_channels)
    text = normal(options, n, rows, config.joint_attention_dim)
    ids = [
        torch.tensor(ids, dtype=options.torch_dtype, device=options.device)
        for ids in positions(len(config.axes_dims_rope), rows, (w16, h16))
    ]
    inputs = {"timestep": time.to(options.torch_dtype), "txt_ids": ids[0], "img_ids": ids[1], "return_dict": False}
    if config.guidance_embeds:
        inputs["guidance"] = torch.full((n,), 3.5, device=options.device)
    if preset["family"] == "flux":
        inputs["pooled_projections"] = normal(options, n, config.pooled_projection_dim)
    return lambda: network(hidden_states=latents, encoder_hidden_states=text, **inputs)[0]
