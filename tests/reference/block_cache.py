"""Latents of diffusers' pipelines with `apply_first_block_cache`, and which evaluations had all blocks.

Writes `tests/fixtures/block_cache.json` and `block_cache.safetensors`. `sd3_*`: final latents `(1, 4, 8, 8)` of
`StableDiffusion3Pipeline` over `models/emoji-sd3` with guidance, whose two rows decide together. `flux_*`: final
latents `(1, 4, 6, 10)` of `FluxPipeline` with the weights, latents and text of the formula `tensor`, which the test has too.

Two parts of diffusers are replaced. The last block of SD3 returns no text, from which the hook would subtract: it gets the text
as it was. SD3's transformer has no context of the cache, and its pipeline sets none: the whole call is one.
"""

import sys

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel, StableDiffusion3Pipeline
from diffusers.hooks import FirstBlockCacheConfig, apply_first_block_cache
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from diffusers.models.attention import JointTransformerBlock
from diffusers.models.cache_utils import CacheMixin

from common import FIXTURES, save_json_rows, save_safetensors

ROOT = FIXTURES.parent.parent
SD3 = {"prompt": "a rocket", "negative_prompt": "blue", "seed": 5, "steps": 20, "cfg_scale": 3.0, "width": 64, "height": 64, "length": 32}
SD3_THRESHOLDS = [0.0, 0.08, 0.15, 0.3]
FLUX = {"height": 6, "width": 10, "tokens": 7, "steps": 12, "guidance": 3.5}
FLUX_THRESHOLDS = [0.0, 0.12, 0.15, 0.2]
FLUX_CONFIG = {
    "attention_head_dim": 16, "num_attention_heads": 4, "axes_dims_rope": [4, 6, 6], "joint_attention_dim": 48,
    "pooled_projection_dim": 24, "num_layers": 2, "num_single_layers": 2, "guidance_embeds": True, "in_channels": 16,
}


def tensor(shape, seed):
    """Values that do not repeat, from -1.7 to 1.7."""
    count = torch.Size(shape).numel()
    values = (torch.arange(1, count + 1, dtype=torch.float64) * 0.618033988749895 + seed * 0.379).frac()
    return (values.float() * 3.4 - 1.7).reshape(shape)


class Watch:
    """Which evaluations had all blocks, of a transformer with the cache."""

    def __init__(self):
        self.whole = []
        decide = FBCHeadBlockHook._should_compute_remaining_blocks
        self.decide = decide

        def watched(hook, residual):
            whole = decide(hook, residual)
            self.whole.append(bool(whole))
            return whole

        FBCHeadBlockHook._should_compute_remaining_blocks = watched

    def end(self):
        FBCHeadBlockHook._should_compute_remaining_blocks = self.decide
        return self.whole


def sd3(threshold):
    pipe = StableDiffusion3Pipeline.from_pretrained(
        ROOT / "models/emoji-sd3", dtype=torch.float32, local_files_only=True
    )
    pipe.set_progress_bar_config(disable=True)
    last = pipe.transformer.transformer_blocks[-1]
    forward = JointTransformerBlock.forward

    def with_text(hidden_states, encoder_hidden_states, **arguments):
        text, image = forward(last, hidden_states, encoder_hidden_states, **arguments)
        return encoder_hidden_states if text is None else text, image

    if threshold is not None:
        last.forward = with_text
        apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=threshold))
    watch = Watch()
    with CacheMixin.cache_context(pipe.transformer, "all"):
        latents = pipe(
            SD3["prompt"], negative_prompt=SD3["negative_prompt"], num_inference_steps=SD3["steps"],
            guidance_scale=SD3["cfg_scale"], width=SD3["width"], height=SD3["height"], output_type="latent",
            max_sequence_length=SD3["length"], generator=torch.Generator().manual_seed(SD3["seed"]),
        ).images
    return latents, watch.end()


def flux_transformer():
    network = FluxTransformer2DModel(**{**FLUX_CONFIG, "axes_dims_rope": tuple(FLUX_CONFIG["axes_dims_rope"])})
    weights = {}
    for key, value in network.state_dict().items():
        made = tensor(value.shape, sum(key.encode()))
        weights[key] = made * 0.1 + 0.5 if value.dim() == 1 else made * (1.0 / value.shape[1] ** 0.5)
    network.load_state_dict(weights)
    return network.eval()


def flux(threshold):
    parts = dict.fromkeys(("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0)
    pipe = FluxPipeline(scheduler=scheduler, transformer=flux_transformer(), **parts)
    pipe.set_progress_bar_config(disable=True)
    if threshold is not None:
        apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=threshold))
    h, w, steps = FLUX["height"], FLUX["width"], FLUX["steps"]
    watch = Watch()
    latents = pipe(
        prompt_embeds=tensor((1, FLUX["tokens"], FLUX_CONFIG["joint_attention_dim"]), 1),
        pooled_prompt_embeds=tensor((1, FLUX_CONFIG["pooled_projection_dim"]), 2),
        latents=FluxPipeline._pack_latents(tensor((1, 4, h, w), 3), 1, 4, h, w),
        height=8 * h, width=8 * w, num_inference_steps=steps, sigmas=[1.0 - i / steps for i in range(steps)],
        guidance_scale=FLUX["guidance"], output_type="latent",
    ).images
    return FluxPipeline._unpack_latents(latents, 8 * h, 8 * w, 8), watch.end()


def main():
    rows, tensors = [], {}
    for kind, settings, thresholds, run in [("sd3", SD3, SD3_THRESHOLDS, sd3), ("flux", FLUX, FLUX_THRESHOLDS, flux)]:
        for threshold in [None, *thresholds]:
            name = f"{kind}_{threshold}"
            latents, whole = run(threshold)
            tensors[name] = latents
            rows.append({"name": name, "kind": kind, **settings, "threshold": threshold, "whole": whole})
            print(name, sum(whole), "of", len(whole), file=sys.stderr)
    save_json_rows(FIXTURES / "block_cache.json", rows)
    save_safetensors(FIXTURES / "block_cache.safetensors", tensors)


if __name__ == "__main__":
    main()
