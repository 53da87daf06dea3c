"""Whole pipelines over the tiny models: final latents of diffusers' own pipeline classes.

Writes `tests/fixtures/pipeline_{kind}.json`, an array of cases, and `pipeline_{kind}.safetensors` with the tensor
`{name}` for each: the latents `(images, 4, height / 8, width / 8)` in f32, as `output_type="latent"` gives them.
Where a case says `"decoded": true`, `{name}.image` `(images, 3, height, width)` is the decoded image after
diffusers' post-processing, `(x / 2 + 0.5).clamp(0, 1)`.

Prompts are encoded here, chunk by chunk, and handed over as embeddings, because diffusers alone cuts them at 75
tokens. For prompts that fit, the same case is run through diffusers' own encoding and must agree.
"""

import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline

from common import (
    FIXTURES,
    KINDS,
    LONG_PROMPT,
    LONGER_PROMPT,
    MODELS,
    chunk_count,
    encode_prompt,
    load_json,
    load_text,
    load_unet,
    load_vae,
    make_sampler,
    save_json_rows,
    save_safetensors,
)

DEFAULTS = {
    "prompt": "a red apple",
    "negative_prompt": None,
    "seed": 42,
    "steps": 8,
    "cfg_scale": 7.5,
    "width": 64,
    "height": 64,
    "images": 1,
    "sampler": None,
    "schedule": "default",
    "decoded": False,
}

# Each case names what differs from the defaults; `sampler` None is the folder's own.
CASES = {
    "folder": {"steps": 20, "decoded": True},
    "ddim": {"sampler": "ddim", "steps": 10},
    "ddim_20": {"sampler": "ddim", "steps": 20, "cfg_scale": 3.0},
    "euler": {"sampler": "euler", "steps": 10},
    "euler_20": {"sampler": "euler", "steps": 20, "cfg_scale": 3.0},
    "euler_karras": {"sampler": "euler", "schedule": "karras", "steps": 10},
    "euler_a": {"sampler": "euler_a", "steps": 10},
    "euler_a_20": {"sampler": "euler_a", "steps": 20, "cfg_scale": 3.0},
    "dpmpp_2m": {"sampler": "dpmpp_2m", "steps": 10},
    "dpmpp_2m_20": {"sampler": "dpmpp_2m", "steps": 20, "cfg_scale": 3.0},
    "dpmpp_2m_karras": {"sampler": "dpmpp_2m", "schedule": "karras", "steps": 10},
    "dpmpp_2m_karras_20": {"sampler": "dpmpp_2m", "schedule": "karras", "steps": 20, "cfg_scale": 3.0},
    "pndm": {"sampler": "pndm", "steps": 10},
    "heun": {"sampler": "heun", "steps": 6},
    "lms": {"sampler": "lms", "steps": 10},
    "unipc": {"sampler": "unipc", "steps": 10},
    "ddpm": {"sampler": "ddpm", "steps": 10},
    "one_step": {"sampler": "euler", "steps": 1},
    "two_steps": {"sampler": "dpmpp_2m", "steps": 2},
    "wide": {"sampler": "ddim", "width": 96},
    "tall_euler_a": {"sampler": "euler_a", "height": 96},
    "odd": {"sampler": "dpmpp_2m", "width": 104, "height": 72},
    "odd_small": {"sampler": "euler_a", "width": 56, "height": 40, "decoded": True},
    "three": {"sampler": "ddim", "images": 3},
    "three_odd_euler_a": {"sampler": "euler_a", "images": 3, "width": 56, "height": 40, "seed": 7},
    "three_ddpm": {"sampler": "ddpm", "images": 3, "width": 56, "height": 40, "seed": 2**32 + 5},
    "guidance_1": {"sampler": "dpmpp_2m", "cfg_scale": 1.0},
    "guidance_1_three": {"sampler": "euler_a", "cfg_scale": 1.0, "images": 3},
    "guidance_3": {"sampler": "euler", "cfg_scale": 3.0, "seed": 0},
    "negative": {"sampler": "ddim", "negative_prompt": "blurry, low quality"},
    "negative_empty": {"sampler": "ddim", "negative_prompt": ""},
    "empty_prompt": {"sampler": "euler", "prompt": ""},
    "long": {"sampler": "ddim", "prompt": LONG_PROMPT},
    "long_negative": {"sampler": "euler", "negative_prompt": LONGER_PROMPT},
    "long_both": {
        "sampler": "dpmpp_2m",
        "prompt": LONGER_PROMPT,
        "negative_prompt": LONG_PROMPT,
        "width": 104,
        "height": 72,
        "images": 2,
    },
    "long_negative_empty": {"sampler": "dpmpp_2m", "prompt": LONG_PROMPT, "negative_prompt": ""},
}


def load_pipeline(kind, pairs):
    """The pipeline of folder `kind` in f32."""
    root = MODELS / kind
    parts = {
        "vae": load_vae(root / "vae"),
        "unet": load_unet(root / "unet"),
        "scheduler": make_sampler(load_json(root / "scheduler" / "scheduler_config.json")),
        "tokenizer": pairs[0][0],
        "text_encoder": pairs[0][1],
    }
    if kind == "sdxl":
        zeros = load_json(root / "model_index.json")["force_zeros_for_empty_prompt"]
        pipe = StableDiffusionXLPipeline(
            **parts,
            tokenizer_2=pairs[1][0],
            text_encoder_2=pairs[1][1],
            force_zeros_for_empty_prompt=zeros,
            add_watermarker=False,
        )
    else:
        pipe = StableDiffusionPipeline(
            **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def conditioning(pipe, pairs, case):
    """The pipeline's embedding arguments for a case, both prompts in the same number of chunks."""
    negative = case["negative_prompt"]
    chunks = max(chunk_count(pairs, case["prompt"]), chunk_count(pairs, negative or ""))
    context, pooled = encode_prompt(pairs, case["prompt"], chunks)
    if negative is None and len(pairs) == 2 and pipe.config.force_zeros_for_empty_prompt:
        negative_context, negative_pooled = torch.zeros_like(context), torch.zeros_like(pooled)
    else:
        negative_context, negative_pooled = encode_prompt(pairs, negative or "", chunks)
    arguments = {"prompt_embeds": context, "negative_prompt_embeds": negative_context}
    if pooled is not None:
        arguments |= {"pooled_prompt_embeds": pooled, "negative_pooled_prompt_embeds": negative_pooled}
    return arguments, chunks


def run_case(pipe, config, case, arguments):
    """The final latents of one case. Scheduler and generators are new."""
    pipe.scheduler = make_sampler(config, case["sampler"], case["schedule"])
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    return pipe(
        **arguments,
        height=case["height"],
        width=case["width"],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        num_images_per_prompt=case["images"],
        generator=generators,
        output_type="latent",
    ).images


def decode(pipe, latents):
    """The image in 0..1, as returned by the pipeline's image processor."""
    image = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample
    return pipe.image_processor.postprocess(image, output_type="pt")


def main():
    """Write the cases of every kind."""
    for kind in KINDS:
        pairs = load_text(kind)
        pipe = load_pipeline(kind, pairs)
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        rows, tensors = [], {}
        for name, changes in CASES.items():
            case = {"name": name, **DEFAULTS, **changes}
            arguments, chunks = conditioning(pipe, pairs, case)
            latents = run_case(pipe, config, case, arguments)
            if chunks == 1:
                own = {"prompt": case["prompt"], "negative_prompt": case["negative_prompt"]}
                assert torch.equal(latents, run_case(pipe, config, case, own)), (kind, name)
            tensors[name] = latents
            if case["decoded"]:
                tensors[f"{name}.image"] = decode(pipe, latents)
            rows.append(case)
        save_json_rows(FIXTURES / f"pipeline_{kind}.json", rows)
        save_safetensors(FIXTURES / f"pipeline_{kind}.safetensors", tensors)
