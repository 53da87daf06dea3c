"""Floating-point operations of the presets' networks, counted by PyTorch's `FlopCounterMode`.

The networks are diffusers' and transformers' own, on the device `meta`: no weights are read, and nothing is computed.
Attention is computed by plain products, since the counter knows no fused kernel there. Writes `tests/fixtures/flop.json`.
"""

import json

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from common import FIXTURES, save_json_rows

PRESETS = FIXTURES.parents[1] / "crates" / "models" / "src" / "presets"
BATCH, TOKENS = 2, 77


def zeros(*shape, dtype=torch.float32):
    """A tensor without elements."""
    return torch.zeros(*shape, dtype=dtype, device="meta")


def count(run):
    """The operations of `run`."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def main():
    """Count every preset."""
    rows = []
    for name in ("emoji", "sd15-512", "sdxl-1024", "sd-turbo"):
        preset = json.loads((PRESETS / f"{name}.json").read_text(encoding="utf-8"))
        side = preset["width"] // 8
        with torch.device("meta"):
            unet = UNet2DConditionModel.from_config(preset["unet"])
            vae = AutoencoderKL.from_config(preset["vae"])
        unet.set_attn_processor(AttnProcessor())
        vae.set_attn_processor(AttnProcessor())
        config = unet.config
        added = {}
        if config.addition_embed_type == "text_time":
            pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
            added = {"added_cond_kwargs": {"text_embeds": zeros(BATCH, pooled), "time_ids": zeros(BATCH, 6)}}
        latents = zeros(BATCH, config.in_channels, side, side)
        context = zeros(BATCH, TOKENS, config.cross_attention_dim)
        texts = []
        for values in preset["text_encoders"]:
            text_config = CLIPTextConfig(**values, attn_implementation="eager")
            projected = "CLIPTextModelWithProjection" in (values.get("architectures") or [])
            with torch.device("meta"):
                model = (CLIPTextModelWithProjection if projected else CLIPTextModel)(text_config)
            texts.append(count(lambda: model(zeros(1, TOKENS, dtype=torch.long))))
        rows.append(
            {
                "preset": name,
                "side": side,
                "unet": count(lambda: unet(latents, zeros(1), context, **added)),
                "decoder": count(lambda: vae.decode(latents[:1])),
                "texts": texts,
            }
        )
    save_json_rows(FIXTURES / "flop.json", rows)
