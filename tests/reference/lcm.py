"""A small latent consistency model: a U-Net with the guidance scale as an input, and diffusers' own pipeline over it.

Writes `tests/fixtures/lcm/`: `model_index.json`, the scheduler's and the U-Net's configurations and the U-Net's weights (the
text encoder, tokenizer and autoencoder are those of `models/sd1`); `pipeline.json` with the cases and
`pipeline.safetensors` with the final latents of each, as `LatentConsistencyModelPipeline` gives them.
"""

import torch
from diffusers import LatentConsistencyModelPipeline, LCMScheduler, UNet2DConditionModel

from common import (
    FIXTURES,
    MODELS,
    load_text,
    load_unet,
    load_vae,
    save_json,
    save_json_rows,
    save_safetensors,
)
from models import UNETS, check_same, model_index, stretch, write_diffusers_model

LCM = FIXTURES / "lcm"

UNET = {
    **UNETS["sd1"],
    "attention_head_dim": 2,
    "block_out_channels": [4, 8],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "norm_num_groups": 2,
    "sample_size": 8,
    "time_cond_proj_dim": 10,
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}

# The file of SimianLuo/LCM_Dreamshaper_v7.
SCHEDULER = {
    "_class_name": "LCMScheduler",
    "_diffusers_version": "0.22.0.dev0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "clip_sample_range": 1.0,
    "dynamic_thresholding_ratio": 0.995,
    "num_train_timesteps": 1000,
    "original_inference_steps": 50,
    "prediction_type": "epsilon",
    "rescale_betas_zero_snr": False,
    "sample_max_value": 1.0,
    "set_alpha_to_one": True,
    "steps_offset": 0,
    "thresholding": False,
    "timestep_scaling": 10.0,
    "timestep_spacing": "leading",
    "trained_betas": None,
}

# What differs from the pipeline's own defaults: 4 steps, guidance 8.5, the size that `sample_size` means.
CASES = {
    "defaults": {},
    "eight_steps": {"steps": 8},
    "one_step": {"steps": 1},
    "guidance_1": {"cfg_scale": 1.0},
    "guidance_3": {"cfg_scale": 3.0, "steps": 6},
    "two": {"images": 2, "width": 56, "height": 40},
}


def run(pipe, case):
    """The final latents of a case."""
    generators = [torch.Generator("cpu").manual_seed(42 + i) for i in range(case.get("images", 1))]
    sizes = {key: case[key] for key in ("width", "height") if key in case}
    steps = {"num_inference_steps": case["steps"]} if "steps" in case else {}
    guidance = {"guidance_scale": case["cfg_scale"]} if "cfg_scale" in case else {}
    return pipe(
        "a red apple",
        num_images_per_prompt=len(generators),
        generator=generators,
        output_type="latent",
        **sizes,
        **steps,
        **guidance,
    ).images


def main():
    """Write the model and the cases."""
    unet = stretch(UNet2DConditionModel.from_config(UNET), "lcm/unet", 0.7)
    unet.time_embedding.cond_proj.weight.mul_(8.0)
    write_diffusers_model(LCM / "unet", unet, UNET)
    check_same(unet, load_unet(LCM / "unet"))
    save_json(LCM / "scheduler" / "scheduler_config.json", SCHEDULER)
    save_json(LCM / "model_index.json", {**model_index("sd1"), "_class_name": "LatentConsistencyModelPipeline"})
    [(tokenizer, text_encoder)] = load_text("sd1")
    pipe = LatentConsistencyModelPipeline(
        vae=load_vae(MODELS / "sd1" / "vae"),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=load_unet(LCM / "unet"),
        scheduler=LCMScheduler.from_config(SCHEDULER),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    tensors = {name: run(pipe, case) for name, case in CASES.items()}
    # The guidance scale must have an effect, or the comparison shows nothing.
    strengths = [run(pipe, {"cfg_scale": scale}) for scale in (1.0, 8.5)]
    ratio = (strengths[0] - strengths[1]).std() / strengths[1].std()
    assert ratio > 0.05, ratio
    save_json_rows(LCM / "pipeline.json", [{"name": name, **case} for name, case in CASES.items()])
    save_safetensors(LCM / "pipeline.safetensors", tensors)
