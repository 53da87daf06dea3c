"""ControlNets over the tiny models: residuals, and final latents of diffusers' pipelines.

The networks are those of `crates/testkit/src/control.rs`: encoders are the U-Nets' with all weights times a factor, other
weights follow from their names. The task `hires` is text-to-image whose latents are interpolated and then the input of
image-to-image, with the same networks in both passes. Writes `tests/fixtures/control.json`, an array of cases, and `control.safetensors`:
`{kind}.{name}`, the final latents `(images, 4, h, w)`; and for `{kind}.taps` and `{kind}.taps_small` inputs (`sample`,
`timestep`, `context`, `hint` pixels follow from the size, `text_embeds`, `time_ids`) and residuals `down.{i}`, `mid`.
"""

import numpy as np
import torch
from diffusers import (
    ControlNetModel,
    StableDiffusionControlNetImg2ImgPipeline,
    StableDiffusionControlNetInpaintPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionXLControlNetImg2ImgPipeline,
    StableDiffusionXLControlNetInpaintPipeline,
    StableDiffusionXLControlNetPipeline,
)
from PIL import Image

from common import (
    FIXTURES,
    KINDS,
    MODELS,
    load_json,
    load_text,
    load_unet,
    make_sampler,
    randn,
    save_json_rows,
    save_safetensors,
)
from image_to_image import inputs
from pipeline import load_pipeline

SIZE = 64
# Of the second pass.
HIRES_SIZE = 96
# Another size than the images': it is resized.
CONTROL_SIZE = (80, 48)
TAPS_SIZE = (4, 6)
HINT_WIDTHS = (4, 6, 8, 8)
PIPELINES = {
    False: {
        "txt2img": StableDiffusionControlNetPipeline,
        "img2img": StableDiffusionControlNetImg2ImgPipeline,
        "inpaint": StableDiffusionControlNetInpaintPipeline,
        "hires": StableDiffusionControlNetPipeline,
    },
    True: {
        "txt2img": StableDiffusionXLControlNetPipeline,
        "img2img": StableDiffusionXLControlNetImg2ImgPipeline,
        "inpaint": StableDiffusionXLControlNetInpaintPipeline,
        "hires": StableDiffusionXLControlNetPipeline,
    },
}
DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 6,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "ddim",
    "task": "txt2img",
    "strength": 0.6,
    "guess": False,
    # For each network its form, its weight, and the part of the evaluations in which it acts.
    "nets": [["full", 1.0, 0.0, 1.0]],
}
TWO = [["full", 0.7, 0.0, 1.0], ["full", 1.3, 0.0, 0.5]]
PART = [["full", 0.8, 0.25, 0.75]]
CASES = {
    "sd1": {
        "plain": {},
        "two": {"nets": TWO, "sampler": "euler_a", "images": 2},
        "part": {"nets": PART, "sampler": "heun"},
        "guess": {"guess": True},
        "guess_two": {"guess": True, "nets": TWO},
        "unguided": {"cfg_scale": 1.0, "guess": True, "sampler": "euler"},
        "img2img": {"task": "img2img", "nets": PART, "sampler": "euler_a"},
        "inpaint": {"task": "inpaint", "sampler": "dpmpp_2m"},
        "inpaint_guess": {"task": "inpaint", "guess": True, "strength": 1.0},
        "hires": {"task": "hires", "nets": TWO, "sampler": "euler_a", "images": 2},
    },
    "sd2v": {
        "plain": {"sampler": "dpmpp_2m"},
        "two_guess": {"nets": TWO, "guess": True},
        "img2img": {"task": "img2img"},
    },
    "sdxl": {
        "plain": {"sampler": "euler"},
        "two": {"nets": [["full", 0.7, 0.0, 1.0], ["small", 0.9, 0.3, 1.0]]},
        "guess": {"guess": True},
        "img2img": {"task": "img2img", "sampler": "euler_a"},
        "inpaint": {"task": "inpaint", "nets": PART},
        "hires": {"task": "hires", "nets": PART, "sampler": "dpmpp_2m"},
    },
}


def values(name, count, size):
    """`values` of `crates/testkit/src/control.rs`."""
    state = 0x811C9DC5
    for byte in name.encode():
        state = ((state ^ byte) * 0x01000193) % 2**32
    numbers = []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        numbers.append((state / 4294967296.0 - 0.5) * size)
    return torch.tensor(np.array(numbers, dtype=np.float64)).to(torch.float32)


def control_net(kind, number, form):
    """Network `number` for the model `kind`."""
    unet = load_unet(MODELS / kind / "unet")
    config = {key: unet.config[key] for key in unet.config if key in ControlNetModel._get_init_keys(ControlNetModel)}
    config["conditioning_embedding_out_channels"] = HINT_WIDTHS
    if form == "small":
        config["down_block_types"] = ["DownBlock2D"] * len(config["block_out_channels"])
        config["mid_block_type"] = "UNetMidBlock2D"
    net = ControlNetModel(**{k: v for k, v in config.items() if not k.startswith("_")}).eval()
    factor = 1.0 - 0.125 / (number + 1)
    own = unet.state_dict()
    state = {}
    for key, tensor in net.state_dict().items():
        if not key.startswith("controlnet"):
            state[key] = own[key] * factor
            continue
        if key.endswith(".bias"):
            size = 0.2
        else:
            gain = 1.5 if key.startswith("controlnet_cond_embedding") else 0.5
            size = gain * (12.0 / (tensor.shape[1] * tensor.shape[2] * tensor.shape[3])) ** 0.5
        state[key] = values(f"{number}/{key}", tensor.numel(), size).reshape(tensor.shape)
    net.load_state_dict(state)
    return net


def control_image(width, height):
    """`control_pixels` of `crates/testkit/src/control.rs`."""
    y, x = np.mgrid[0:height, 0:width]
    checks = np.where((x // 8 + y // 8) % 2 == 0, 40, 255)
    return Image.fromarray(np.stack([(7 * x + 3 * y) % 256, (x * y) % 256, checks], axis=-1).astype(np.uint8))


def taps(kind, form):
    """Inputs and residuals of one call."""
    net = control_net(kind, 0, form)
    (h, w), dim = TAPS_SIZE, net.config.cross_attention_dim
    name = f"control/{kind}/{form}"
    found = {
        "sample": randn((2, 4, h, w), name, "sample"),
        "timestep": torch.tensor([601.0]),
        "context": randn((2, 5, dim), name, "context"),
    }
    pixels = torch.tensor(np.array(control_image(8 * w, 8 * h))).permute(2, 0, 1)[None].to(torch.float32) / 255
    added = {}
    if net.config.addition_embed_type:
        pooled = net.config.projection_class_embeddings_input_dim - 6 * net.config.addition_time_embed_dim
        added = {
            "text_embeds": randn((2, pooled), name, "text_embeds"),
            "time_ids": torch.tensor([[64.0, 48.0, 0.0, 0.0, 64.0, 48.0]] * 2),
        }
        found |= added
    down, mid = net(
        found["sample"], found["timestep"][0], found["context"], pixels.repeat(2, 1, 1, 1),
        conditioning_scale=0.7, guess_mode=True, added_cond_kwargs=added, return_dict=False,
    )
    found |= {f"down.{i}": tensor for i, tensor in enumerate(down)} | {"mid": mid}
    return {f"{kind}.taps{'_small' if form == 'small' else ''}.{key}": tensor for key, tensor in found.items()}


def run_case(pipe, config, case, image, mask, size=SIZE):
    """The final latents of one run of a pipeline. Scheduler and generators are made afresh."""
    pipe.scheduler = make_sampler(config, case["sampler"])
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    picture = control_image(*CONTROL_SIZE)
    pictures = [picture] * len(case["nets"]) if len(case["nets"]) > 1 else picture
    weights, starts, ends = ([net[i] for net in case["nets"]] for i in (1, 2, 3))
    if len(case["nets"]) == 1:
        weights, starts, ends = weights[0], starts[0], ends[0]
    arguments = {"image": pictures}
    if image is not None:
        arguments = {"image": image, "control_image": pictures, "strength": case["strength"]}
    if case["task"] == "inpaint":
        arguments["mask_image"] = mask
    return pipe(
        prompt=case["prompt"],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        num_images_per_prompt=case["images"],
        height=size,
        width=size,
        generator=generators,
        controlnet_conditioning_scale=weights,
        control_guidance_start=starts,
        control_guidance_end=ends,
        guess_mode=case["guess"],
        output_type="latent",
        **arguments,
    ).images


def run_hires(pipe, config, case, extra, is_xl):
    """The final latents of both passes."""
    first = run_case(pipe, config, case, None, None)
    latents = torch.nn.functional.interpolate(first, size=(HIRES_SIZE // 8,) * 2, mode="bilinear")
    second = PIPELINES[is_xl]["img2img"](**pipe.components, **extra)
    second.set_progress_bar_config(disable=True)
    return run_case(second, config, case, latents, None, HIRES_SIZE)


def main():
    """Write residuals and cases of every kind."""
    image, mask = inputs()
    rows, tensors = [], {}
    for kind in KINDS:
        tensors |= taps(kind, "full")
        base = load_pipeline(kind, load_text(kind))
        is_xl = kind == "sdxl"
        extra = {"requires_safety_checker": False, "safety_checker": None, "feature_extractor": None}
        if is_xl:
            zeros = load_json(MODELS / kind / "model_index.json")["force_zeros_for_empty_prompt"]
            extra = {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}
        config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
        for name, changes in CASES[kind].items():
            case = {"kind": kind, "name": name, **DEFAULTS, **changes}
            nets = [control_net(kind, number, net[0]) for number, net in enumerate(case["nets"])]
            parts = {key: part for key, part in base.components.items() if key not in extra}
            pipe = PIPELINES[is_xl][case["task"]](**parts, **extra, controlnet=nets if len(nets) > 1 else nets[0])
            pipe.set_progress_bar_config(disable=True)
            if case["task"] == "hires":
                more = {key: value for key, value in extra.items() if key not in pipe.components}
                latents = run_hires(pipe, config, case, more, is_xl)
            else:
                latents = run_case(pipe, config, case, None if case["task"] == "txt2img" else image, mask)
            tensors[f"{kind}.{name}"] = latents
            rows.append(case)
    tensors |= taps("sdxl", "small")
    save_json_rows(FIXTURES / "control.json", rows)
    save_safetensors(FIXTURES / "control.safetensors", tensors)
