"""Guidance by the network itself, over the tiny models: final latents of diffusers' pipelines and of what runs around them.

Writes `tests/fixtures/guidance.json`, an array of cases, each with the request as Kiln reads it, and `guidance.safetensors` with
`{kind}.{name}`, the latents `(images, 4, height / 8, width / 8)`.

PAG, SAG and FreeU are diffusers' own. Adaptive projected guidance is the function of its guiders, within a network that returns
the guided prediction twice. DeepCache is the package of that name. Deep shrink, and FreeU by the number of channels, follow
ComfyUI's `comfy_extras/nodes_model_downscale.py` and `nodes_freelunch.py`.
"""

import torch
import torch.nn.functional as F
from DeepCache import DeepCacheSDHelper
from diffusers import (
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPAGImg2ImgPipeline,
    StableDiffusionPAGInpaintPipeline,
    StableDiffusionPAGPipeline,
    StableDiffusionSAGPipeline,
    StableDiffusionXLPAGImg2ImgPipeline,
    StableDiffusionXLPAGPipeline,
)
from diffusers.guiders.adaptive_projected_guidance import MomentumBuffer, normalized_guidance

from common import FIXTURES, MODELS, load_json, load_text, make_sampler, randn, save_json_rows, save_safetensors
from image_to_image import inputs
from pipeline import load_pipeline

DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 6,
    "cfg_scale": 5.0,
    "batch_size": 1,
    "sampler": "ddim",
    "width": 64,
    "height": 64,
}
# So small that the middle block has more than one token: 13x9 latents, 2x2 there.
ODD = {"width": 104, "height": 72}
PAG = {"pag_scale": 3.0}
FREEU = {"freeu": "1.5,1.6,0.9,0.2"}
CASES = {
    "sd1": {
        "pag": {**PAG, **ODD},
        "pag_two": {**PAG, **ODD, "sampler": "euler_a", "batch_size": 2},
        "pag_adaptive": {**PAG, **ODD, "pag_adaptive_scale": 0.006, "sampler": "heun"},
        "pag_unguided": {**PAG, **ODD, "cfg_scale": 1.0, "sampler": "euler"},
        "pag_layers": {**PAG, "pag_layers": "mid,up_blocks.1,down_blocks.0.attentions.0", "sampler": "dpmpp_2m"},
        "pag_rescale": {**PAG, **ODD, "guidance_rescale": 0.7},
        "pag_img2img": {**PAG, "pag_layers": "up_blocks", "strength": 0.6, "task": "img2img"},
        "pag_inpaint": {**PAG, "pag_layers": "up_blocks.2", "strength": 1.0, "task": "inpaint", "sampler": "euler"},
        "freeu": FREEU,
        "freeu_odd": {**FREEU, **ODD, "batch_size": 2, "sampler": "euler_a"},
        "freeu_pag": {**FREEU, **PAG, **ODD},
        "cfg_schedule": {"cfg_schedule": [9.0, 7.0, 5.0, 4.0, 3.0, 1.5], "sampler": "euler"},
        "cfg_schedule_ends": {"cfg_schedule": [8.0, 2.0]},
        "cfg_schedule_one": {"cfg_schedule": [8.0, 6.0, 4.0, 1.0, 1.0, 1.0]},
        "apg": {"apg_eta": 0.0, "cfg_scale": 9.0},
        "apg_momentum": {"apg_eta": 0.5, "apg_momentum": -0.5, "apg_threshold": 2.5, "batch_size": 2, "sampler": "euler"},
        "deepcache_3": {"cache": "deepcache:3", "steps": 8},
        "deepcache_2_two": {"cache": "deepcache:2", "steps": 7, "sampler": "euler_a", "batch_size": 2},
        "deepcache_unguided": {"cache": "deepcache:4", "steps": 8, "cfg_scale": 1.0},
        "deepcache_branch": {"cache": "deepcache:3:1", "steps": 8, "sampler": "euler"},
        "deepcache_img2img": {"cache": "deepcache:3", "steps": 12, "strength": 0.7, "task": "img2img"},
        "sag": {"sag_scale": 0.75, "width": 128, "height": 128},
        "sag_unguided": {"sag_scale": 1.5, **ODD, "cfg_scale": 1.0},
        "deep_shrink": {"deep_shrink": 2.0, "deep_shrink_block": 1, "deep_shrink_end": 0.5, "width": 128, "height": 96},
        "deep_shrink_part": {
            **ODD, "deep_shrink": 1.6, "deep_shrink_block": 3, "deep_shrink_start": 0.2, "deep_shrink_end": 1.0,
            "batch_size": 2, "sampler": "euler_a",
        },
    },
    "sd2v": {
        "pag": PAG,
        "freeu": FREEU,
        "deepcache_3": {"cache": "deepcache:3", "steps": 8},
        "deepcache_deep": {"cache": "deepcache:2:4", "steps": 8},
        "sag": {"sag_scale": 0.75, **ODD},
        "deep_shrink": {"deep_shrink": 2.0, "deep_shrink_block": 3, "deep_shrink_end": 0.35, **ODD},
    },
    "sdxl": {
        "pag": {**PAG, "sampler": "euler"},
        "pag_unguided": {**PAG, "cfg_scale": 1.0},
        "pag_img2img": {**PAG, "strength": 0.6, "task": "img2img", "sampler": "euler_a", "batch_size": 2},
        "freeu": {**FREEU, "sampler": "dpmpp_2m"},
        "apg": {"apg_eta": 0.0, "apg_threshold": 5.0, "cfg_scale": 9.0},
        "deepcache_3": {"cache": "deepcache:3", "steps": 8, "sampler": "euler"},
        "deep_shrink": {"deep_shrink": 2.0, "deep_shrink_block": 2, "deep_shrink_end": 0.6, **ODD},
    },
}
PIPELINES = {
    (False, "txt2img"): StableDiffusionPAGPipeline,
    (False, "img2img"): StableDiffusionPAGImg2ImgPipeline,
    (False, "inpaint"): StableDiffusionPAGInpaintPipeline,
    (True, "txt2img"): StableDiffusionXLPAGPipeline,
    (True, "img2img"): StableDiffusionXLPAGImg2ImgPipeline,
}


def pipeline(kind, base, case):
    """The pipeline of a case."""
    is_xl, task = kind == "sdxl", case.get("task", "txt2img")
    extra = {"requires_safety_checker": False, "safety_checker": None, "feature_extractor": None}
    if is_xl:
        zeros = load_json(MODELS / kind / "model_index.json")["force_zeros_for_empty_prompt"]
        extra = {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}
    parts = {key: part for key, part in base.components.items() if key not in extra}
    if "pag_scale" in case:
        layers = case.get("pag_layers", "mid").split(",")
        pipe = PIPELINES[is_xl, task](**parts, **extra, pag_applied_layers=layers)
    elif "sag_scale" in case:
        pipe = StableDiffusionSAGPipeline(**parts, **extra)
    elif task == "img2img":
        pipe = StableDiffusionImg2ImgPipeline(**parts, **extra)
    else:
        pipe = type(base)(**parts, **extra)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def projecting(forward, case):
    """A network whose halves are both the projected prediction, so that any strength of plain guidance leaves it."""
    momentum = MomentumBuffer(case["apg_momentum"]) if "apg_momentum" in case else None

    def run(*args, **kwargs):
        kwargs["return_dict"] = False
        uncond, cond = forward(*args, **kwargs)[0].chunk(2)
        threshold = case.get("apg_threshold", 15.0)
        guided = normalized_guidance(cond, uncond, case["cfg_scale"], momentum, case["apg_eta"], threshold)
        return (torch.cat([guided, guided]),)

    return run


def shrinking(unet, case, is_plain=False):
    """The network with ComfyUI's `PatchModelAddDownscale`: `after_skip`, both methods bicubic."""
    block, factor = case["deep_shrink_block"], case["deep_shrink"]
    # `percent_to_sigma` is the level of timestep (1 - percent) * 999.
    first, last = (999.0 * (1.0 - case.get(f"deep_shrink_{end}", usual)) for end, usual in (("start", 0.0), ("end", 0.35)))

    def resize(h, height, width):
        return F.interpolate(h, size=(height, width), mode="bicubic")

    def run(sample, timestep, encoder_hidden_states, added_cond_kwargs=None, **_):
        t = torch.as_tensor(timestep)
        acts = last <= float(t) <= first and not is_plain
        emb = unet.get_time_embed(sample=sample, timestep=t)
        emb = unet.time_embedding(emb)
        added = unet.get_aug_embed(emb=emb, encoder_hidden_states=encoder_hidden_states, added_cond_kwargs=added_cond_kwargs)
        emb = emb if added is None else emb + added
        context, skips = encoder_hidden_states, []

        def keep(h):
            skips.append(h)
            if acts and len(skips) - 1 == block:
                return resize(h, round(h.shape[-2] * (1.0 / factor)), round(h.shape[-1] * (1.0 / factor)))
            return h

        def layers(part, i, h):
            h = part.resnets[i](h, emb)
            if getattr(part, "attentions", None):
                h = part.attentions[i](h, encoder_hidden_states=context).sample
            return h

        h = keep(unet.conv_in(sample))
        for down in unet.down_blocks:
            for i in range(len(down.resnets)):
                h = keep(layers(down, i, h))
            for downsampler in down.downsamplers or []:
                h = keep(downsampler(h))
        h = unet.mid_block(h, emb, encoder_hidden_states=context)
        for up in unet.up_blocks:
            for i in range(len(up.resnets)):
                skip = skips.pop()
                if acts and h.shape[2] != skip.shape[2]:
                    h = resize(h, *skip.shape[2:])
                h = layers(up, i, torch.cat([h, skip], dim=1))
            for upsampler in up.upsamplers or []:
                h = upsampler(h, tuple(skips[-1].shape[2:]))
        y = unet.conv_out(unet.conv_act(unet.conv_norm_out(h)))
        return (y,)

    return run


class Strengths:
    """The strength of the guidance at each evaluation, on a line through evenly spread numbers."""

    def __init__(self, numbers, steps):
        self.numbers, self.steps = numbers, steps

    def at(self, step):
        place = step * (len(self.numbers) - 1) / max(self.steps - 1, 1)
        i = min(int(place), len(self.numbers) - 2)
        return self.numbers[i] + (place - i) * (self.numbers[i + 1] - self.numbers[i])

    def after_step(self, pipe, step, _, tensors):
        was = pipe._guidance_scale
        pipe._guidance_scale = self.at(step + 1) if step + 1 < self.steps else was
        if was > 1.0 >= pipe._guidance_scale:
            tensors["prompt_embeds"] = tensors["prompt_embeds"].chunk(2)[1]
        return tensors


def run_case(kind, base, case, image, mask):
    """The final latents of one case. Scheduler and generators are new."""
    pipe, unet, own = pipeline(kind, base, case), base.unet, base.unet.forward
    config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
    pipe.scheduler = make_sampler(config, case["sampler"])
    arguments = {"guidance_scale": case["cfg_scale"]}
    for name in ("pag_scale", "pag_adaptive_scale", "guidance_rescale", "sag_scale"):
        if name in case:
            arguments[name] = case[name]
    task = case.get("task", "txt2img")
    if task == "txt2img":
        arguments |= {"width": case["width"], "height": case["height"]}
    else:
        arguments |= {"image": image, "strength": case["strength"]}
    if task == "inpaint":
        arguments |= {"mask_image": mask, "width": case["width"], "height": case["height"]}
    if "freeu" in case:
        b1, b2, s1, s2 = map(float, case["freeu"].split(","))
        unet.enable_freeu(s1=s1, s2=s2, b1=b1, b2=b2)
    if "apg_eta" in case:
        unet.forward = projecting(own, case)
    if "deep_shrink" in case:
        unet.forward = shrinking(unet, case)
    if "cfg_schedule" in case:
        strengths = Strengths(case["cfg_schedule"], case["steps"])
        arguments |= {"guidance_scale": strengths.at(0), "callback_on_step_end": strengths.after_step}
        arguments["callback_on_step_end_tensor_inputs"] = ["latents", "prompt_embeds"]
    cache = None
    if "cache" in case:
        interval, *branch = map(int, case["cache"].split(":")[1:])
        cache = DeepCacheSDHelper(pipe=pipe)
        cache.set_params(cache_interval=interval, cache_branch_id=branch[0] if branch else 0)
        cache.enable()
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["batch_size"])]
    latents = pipe(
        prompt=case["prompt"],
        num_inference_steps=case["steps"],
        num_images_per_prompt=case["batch_size"],
        generator=generators,
        output_type="latent",
        **arguments,
    ).images
    if cache:
        cache.disable()
    unet.forward = own
    unet.disable_freeu()
    unet.set_default_attn_processor()
    return latents


def check_shrinking(unet, added):
    """The network that is written out above is diffusers' where nothing shrinks."""
    x, context = randn((2, 4, 16, 16), "shrink", "x"), randn((2, 7, unet.config.cross_attention_dim), "shrink", "context")
    case = {"deep_shrink_block": 1, "deep_shrink": 2.0}
    t = torch.tensor(601.0)
    found = shrinking(unet, case, True)(x, t, context, added_cond_kwargs=added)[0]
    expected = unet(x, t, context, added_cond_kwargs=added, return_dict=False)[0]
    assert (found - expected).abs().max() < 1e-5


def main():
    """Write the cases of every kind."""
    image, mask = inputs()
    rows, tensors = [], {}
    for kind, cases in CASES.items():
        base = load_pipeline(kind, load_text(kind))
        pooled = {"text_embeds": randn((2, 28), "pooled"), "time_ids": torch.tensor([[64.0, 64, 0, 0, 64, 64]] * 2)}
        check_shrinking(base.unet, pooled if kind == "sdxl" else None)
        for name, changes in cases.items():
            case = {**DEFAULTS, **changes}
            tensors[f"{kind}.{name}"] = run_case(kind, base, case, image, mask)
            task = case.pop("task", "txt2img")
            rows.append({"kind": kind, "name": name, "task": task, "strength": case.pop("strength", 1.0), "request": case})
            print(kind, name, float(tensors[f"{kind}.{name}"].std()))
    save_json_rows(FIXTURES / "guidance.json", rows)
    save_safetensors(FIXTURES / "guidance.safetensors", tensors)


if __name__ == "__main__":
    main()
