"""Prompts of unequal length over the tiny models, each row of the U-Net's batch run with its own text length.

Writes `tests/fixtures/lengths.json`, an array of cases, and `lengths.safetensors` with the final latents
`(1, 4, height / 8, width / 8)` in f32 as the tensor `{kind}.{name}` for each.

The rules are those of AUTOMATIC1111's web UI 1.10: parts of a prompt get copies of their last token's vector up to
the longest part (`modules/prompt_parser.py`); with `pad` the prompt or the negative prompt then gets empty chunks up
to the longer one, without it each is run alone (`modules/sd_samplers_cfg_denoiser.py`). Guidance is the sum over the
parts of `weight * scale * (conditional - unconditional)`. The network is diffusers' U-Net, called once for each row,
and the sampler diffusers' DDIM.
"""

import torch

from common import (
    FIXTURES,
    LONG_PROMPT,
    LONGER_PROMPT,
    MODELS,
    chunk_count,
    encode_prompt,
    load_json,
    load_text,
    load_unet,
    make_sampler,
    save_json_rows,
    save_safetensors,
)

TOKENS = 77
DEFAULTS = {"seed": 42, "steps": 6, "cfg_scale": 6.0, "width": 64, "height": 64, "negative_prompt": "blurry"}
PARTS = [("a red apple", 1.0), (LONG_PROMPT, 0.75)]
CASES = {
    "long": {"parts": [(LONG_PROMPT, 1.0)], "pad": False},
    "long_negative": {"parts": [("a red apple", 1.0)], "negative_prompt": LONGER_PROMPT, "pad": False},
    "both": {"parts": [(LONG_PROMPT, 1.0)], "negative_prompt": LONGER_PROMPT, "pad": False},
    "parts": {"parts": PARTS, "pad": False},
    "parts_and_negative": {"parts": PARTS, "negative_prompt": LONGER_PROMPT, "pad": False},
    "parts_padded": {"parts": PARTS, "pad": True},
    "parts_and_negative_padded": {"parts": PARTS, "negative_prompt": LONGER_PROMPT, "pad": True},
}


def with_last(context, tokens):
    """The context with its last vector repeated until it has so many tokens."""
    return torch.cat([context, context[:, -1:].repeat(1, tokens - context.shape[1], 1)], dim=1)


def with_empty(context, empty, tokens):
    """The context with empty chunks behind until it has so many tokens."""
    return torch.cat([context, empty.repeat(1, (tokens - context.shape[1]) // TOKENS, 1)], dim=1)


def rows_of(pairs, case):
    """The texts of a case as `(context, pooled)`, the negative prompt's first."""
    encode = [encode_prompt(pairs, text, chunk_count(pairs, text)) for text, _ in case["parts"]]
    longest = max(context.shape[1] for context, _ in encode)
    rows = [encode_prompt(pairs, case["negative_prompt"], chunk_count(pairs, case["negative_prompt"]))]
    rows += [(with_last(context, longest), pooled) for context, pooled in encode]
    if case["pad"]:
        empty, _ = encode_prompt(pairs, "")
        tokens = max(context.shape[1] for context, _ in rows)
        rows = [(with_empty(context, empty, tokens), pooled) for context, pooled in rows]
    return rows


def run_case(unet, config, pairs, case):
    """The final latents of one case."""
    scheduler = make_sampler(config, "ddim")
    scheduler.set_timesteps(case["steps"])
    shape = (1, 4, case["height"] // 8, case["width"] // 8)
    latents = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(case["seed"])) * scheduler.init_noise_sigma
    rows = rows_of(pairs, case)
    size = [case["height"], case["width"]]
    time_ids = torch.tensor([[*size, 0, 0, *size]], dtype=torch.float32)
    for timestep in scheduler.timesteps:
        x = scheduler.scale_model_input(latents, timestep)
        outputs = []
        for context, pooled in rows:
            added = None if pooled is None else {"text_embeds": pooled, "time_ids": time_ids}
            outputs.append(unet(x, timestep, encoder_hidden_states=context, added_cond_kwargs=added).sample)
        uncond, *conds = outputs
        output = uncond.clone()
        for cond, (_, weight) in zip(conds, case["parts"], strict=True):
            output += (cond - uncond) * (weight * case["cfg_scale"])
        latents = scheduler.step(output, timestep, latents).prev_sample
    return latents


def main():
    """Write the cases."""
    rows, tensors = [], {}
    for kind in ("sd1", "sdxl"):
        pairs = load_text(kind)
        unet = load_unet(MODELS / kind / "unet")
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        for name, changes in CASES.items():
            case = {"kind": kind, "name": name, **DEFAULTS, **changes}
            tensors[f"{kind}.{name}"] = run_case(unet, config, pairs, case)
            rows.append(case)
    save_json_rows(FIXTURES / "lengths.json", rows)
    save_safetensors(FIXTURES / "lengths.safetensors", tensors)
