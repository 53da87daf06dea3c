"""PEFT's `lora_bias`: biases for projections of attention, which have none, and for a layer that has one.

Such a file cannot be merged into the weights of diffusers' layers, so what is compared is the denoiser with the adapter in
it. Writes `tests/fixtures/lora/bias/`: `adapter_model.safetensors` and `adapter_config.json` as PEFT saves them, and
`pipeline.safetensors` with the final latents of diffusers' pipeline over `models/sd1`: `with` the adapter, `without`.
"""

import copy
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from common import FIXTURES, MODELS, load_json, load_text, make_sampler, save_json, save_safetensors
from lora import random_
from pipeline import load_pipeline

BIAS = FIXTURES / "lora" / "bias"
TARGETS = [
    "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_v",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_q",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_v",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_out.0",
    "mid_block.attentions.0.transformer_blocks.0.attn1.to_q",
]


def latents(pipe):
    """The final latents of one small image."""
    pipe.scheduler = make_sampler(load_json(MODELS / "sd1" / "scheduler" / "scheduler_config.json"), "ddim")
    return pipe(
        "a red apple",
        height=64,
        width=64,
        num_inference_steps=3,
        guidance_scale=3.0,
        generator=torch.Generator("cpu").manual_seed(42),
        output_type="latent",
    ).images


def main():
    """Write the adapter and the latents."""
    pipe = load_pipeline("sd1", load_text("sd1"))
    tensors = {"without": latents(pipe)}
    config = LoraConfig(r=2, lora_alpha=3, target_modules=TARGETS, lora_bias=True, init_lora_weights=False)
    model = get_peft_model(copy.deepcopy(pipe.unet), config)
    random_(((n, p) for n, p in model.named_parameters() if p.requires_grad), "lora_bias", scale=0.4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name and name.endswith("bias"):
            parameter.mul_(8.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = load_file(Path(folder) / "adapter_model.safetensors")
        settings = load_json(Path(folder) / "adapter_config.json")
    assert sum(name.endswith("lora_B.bias") for name in file) == len(TARGETS)
    kept = ("lora_alpha", "lora_bias", "peft_type", "r", "use_rslora")
    save_json(BIAS / "adapter_config.json", {key: settings[key] for key in kept})
    save_safetensors(BIAS / "adapter_model.safetensors", file)
    pipe.unet = model.eval()
    pipe.unet.config = model.base_model.model.config
    tensors["with"] = latents(pipe)
    # Without the biases it is another image, or the comparison shows nothing of them.
    for name, parameter in model.named_parameters():
        if "lora_B" in name and name.endswith("bias"):
            parameter.zero_()
    assert (latents(pipe) - tensors["with"]).std() > 0.05 * tensors["with"].std()
    save_safetensors(BIAS / "pipeline.safetensors", tensors)
