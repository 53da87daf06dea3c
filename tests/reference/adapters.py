"""T2I-Adapters, Union networks, ControlNets of means and ControlNet-LLLite over the tiny models: final latents of diffusers'
pipelines. ControlNet-LLLite, which diffusers does not have, is a transcription of `LLLiteModule` in kohya-ss'
`networks/control_net_lllite.py` (sd-scripts).

The networks are those of `crates/testkit/src/adapter.rs`: their weights follow from their names, but for the encoders of
ControlNets, which are those of `control.py`. Writes `tests/fixtures/adapters.json`, an array of cases, and
`adapters.safetensors`: `{kind}.{name}`, the final latents, and `features.{form}.{i}`, the feature maps of one image.
"""

import inspect

import numpy as np
import torch
from diffusers import (
    ControlNetModel,
    ControlNetUnionModel,
    MultiAdapter,
    StableDiffusionAdapterPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionXLAdapterPipeline,
    StableDiffusionXLControlNetUnionPipeline,
    StableDiffusionXLPipeline,
    T2IAdapter,
)
from PIL import Image

from common import FIXTURES, MODELS, load_json, load_text, load_unet, make_sampler, save_json_rows, save_safetensors
from control import HINT_WIDTHS, control_image, control_net, values
from pipeline import load_pipeline

CONTROL_SIZE = (80, 48)
CHANNELS = (8, 12, 20, 20)
FORMS = {
    "full": {"channels": CHANNELS, "num_res_blocks": 2, "downscale_factor": 8, "adapter_type": "full_adapter"},
    "gray": {
        "in_channels": 1, "channels": CHANNELS, "num_res_blocks": 2, "downscale_factor": 8,
        "adapter_type": "full_adapter",
    },
    "light": {"channels": CHANNELS[:3], "num_res_blocks": 2, "downscale_factor": 8, "adapter_type": "light_adapter"},
    "full_xl": {"channels": CHANNELS, "num_res_blocks": 2, "downscale_factor": 16, "adapter_type": "full_adapter_xl"},
}
# Modules of ControlNet-LLLite: their names in files, their layers in diffusers, channels, and kernels of the embedding.
LLLITE = [
    ("input_blocks_3_1_transformer_blocks_0_attn1_to_q", "down_blocks.1.attentions.0.transformer_blocks.0.attn1", 12, (4, 4)),
    ("input_blocks_3_1_transformer_blocks_0_attn1_to_k", "down_blocks.1.attentions.0.transformer_blocks.0.attn1", 12, (4, 4)),
    ("input_blocks_3_1_transformer_blocks_0_attn1_to_v", "down_blocks.1.attentions.0.transformer_blocks.0.attn1", 12, (4, 4)),
    ("input_blocks_3_1_transformer_blocks_0_attn2_to_q", "down_blocks.1.attentions.0.transformer_blocks.0.attn2", 12, (4, 4)),
    ("input_blocks_3_1_transformer_blocks_1_attn1_to_q", "down_blocks.1.attentions.0.transformer_blocks.1.attn1", 12, (4, 4)),
    ("middle_block_1_transformer_blocks_0_attn1_to_v", "mid_block.attentions.0.transformer_blocks.0.attn1", 20, (4, 4, 2)),
    ("output_blocks_2_1_transformer_blocks_0_attn2_to_q", "up_blocks.1.attentions.0.transformer_blocks.0.attn2", 12, (4, 4)),
]
LLLITE_WIDTHS = (3, 3, 6)
LLLITE_HIDDEN = 5
DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 5,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "ddim",
    "size": (64, 64),
    "end": 1.0,
    "guess": False,
    # For each network its form, its weight, and for Union networks the type of its image.
    "nets": [["full", 1.0, None]],
}
CASES = {
    "sd1": {
        "full": {},
        "gray": {"nets": [["gray", 0.8, None]], "sampler": "euler", "images": 2},
        "light": {"nets": [["light", 1.2, None]]},
        "odd": {"size": (72, 40)},
        "multi": {"nets": [["full", 0.7, None], ["light", 0.6, None]]},
        "pool": {"nets": [["pool", 1.5, None]]},
    },
    "sdxl": {
        "full_xl": {"nets": [["full_xl", 1.0, None]], "sampler": "euler"},
        "factor": {"nets": [["full_xl", 0.8, None]], "end": 0.5, "size": (80, 48)},
        "multi_xl": {"nets": [["full_xl", 0.7, None], ["full_xl", 0.5, None]]},
        "union": {"nets": [["union", 0.8, 1]]},
        "union_two": {"nets": [["union", 0.6, 3], ["union", 0.9, 7]], "sampler": "euler"},
        "lllite": {"nets": [["lllite", 0.8, None]], "images": 2},
        "lllite_two": {"nets": [["lllite", 0.6, None], ["lllite", 0.4, None]], "sampler": "euler"},
        # With guidance diffusers 0.42 fails in its guess mode.
        "union_guess": {"nets": [["union", 0.9, 6]], "guess": True, "cfg_scale": 1.0},
    },
}


def by_name(number, key, shape):
    """`by_name` of `crates/testkit/src/adapter.rs`."""
    name, count = f"{number}/{key}", int(np.prod(shape))
    if key.endswith("bias"):
        return values(name, count, 0.2).reshape(shape)
    if len(shape) == 1:
        return 1.0 + values(name, count, 0.5).reshape(shape)
    return values(name, count, (12.0 / np.prod(shape[1:])) ** 0.5).reshape(shape)


def adapter(form, number):
    """An adapter of this form."""
    net = T2IAdapter(**FORMS[form]).eval()
    net.load_state_dict({key: by_name(number, key, tensor.shape) for key, tensor in net.state_dict().items()})
    return net


def pool(kind):
    """A ControlNet whose residuals are means."""
    net = control_net(kind, 0, "full")
    pooled = ControlNetModel(**{k: v for k, v in net.config.items() if not k.startswith("_")} | {
        "global_pool_conditions": True
    }).eval()
    pooled.load_state_dict(net.state_dict())
    return pooled


def union(kind):
    """A Union network: the encoder and the control image's embedding are those of ControlNet 0."""
    base, unet = control_net(kind, 0, "full"), load_unet(MODELS / kind / "unet")
    config = {k: unet.config[k] for k in unet.config if k in ControlNetUnionModel._get_init_keys(ControlNetUnionModel)}
    config |= {"conditioning_embedding_out_channels": HINT_WIDTHS, "num_control_type": 8, "num_trans_channel": 8}
    config |= {"num_trans_head": 8, "num_trans_layer": 1, "num_proj_channel": 8}
    net = ControlNetUnionModel(**{k: v for k, v in config.items() if not k.startswith("_")}).eval()
    own = base.state_dict()
    state = {key: own.get(key, by_name(0, key, tensor.shape)) for key, tensor in net.state_dict().items()}
    net.load_state_dict(state)
    return net


def with_lllite(unet, number, scale, image):
    """Has the layers of `unet` see the image: networks that are added later change what those before them get."""
    image = torch.tensor(np.array(image.resize((64, 64), Image.LANCZOS)), dtype=torch.float32)
    image = (image / 127.5 - 1).permute(2, 0, 1)[None]
    for name, layer, channels, kernels in LLLITE:
        def load(part, *shape):
            return by_name(number, f"lllite_unet_{name}.{part}.weight", shape), by_name(
                number, f"lllite_unet_{name}.{part}.bias", shape[:1])
        embedding, last = image, 3
        widths = LLLITE_WIDTHS[-len(kernels):] if len(kernels) == 3 else (LLLITE_WIDTHS[0], LLLITE_WIDTHS[2])
        for i, (kernel, width) in enumerate(zip(kernels, widths)):
            weight, bias = load(f"conditioning1.{2 * i}", width, last, kernel, kernel)
            embedding = torch.nn.functional.conv2d(embedding, weight, bias, stride=kernel)
            embedding = embedding if i + 1 == len(kernels) else embedding.relu()
            last = width
        embedding = embedding.flatten(2).permute(0, 2, 1)
        down = load("down.0", LLLITE_HIDDEN, channels)
        mid = load("mid.0", LLLITE_HIDDEN, LLLITE_HIDDEN + last)
        up = load("up.0", channels, LLLITE_HIDDEN)
        linear = getattr(unet.get_submodule(layer), name.rsplit("_attn", 1)[1][2:])

        def forward(x, before=linear.forward, parts=(embedding, down, mid, up)):
            embedding, down, mid, up = parts
            hidden = torch.nn.functional.linear(x, *down).relu()
            hidden = torch.cat([embedding.repeat(x.shape[0], 1, 1), hidden], dim=2)
            hidden = torch.nn.functional.linear(hidden, *mid).relu()
            return before(x + torch.nn.functional.linear(hidden, *up) * scale)

        linear.forward = forward


def picture(form):
    """The control image, gray for an adapter of one channel."""
    image = control_image(*CONTROL_SIZE)
    return image.convert("L") if form == "gray" else image


def run_case(kind, base, case):
    """The final latents of one case. Scheduler and generators are made afresh."""
    config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
    extra = {"requires_safety_checker": False, "safety_checker": None, "feature_extractor": None}
    if kind == "sdxl":
        extra = {"force_zeros_for_empty_prompt": load_json(MODELS / kind / "model_index.json")[
            "force_zeros_for_empty_prompt"]}
    of_pipeline = lambda cls: {
        key: part for key, part in (base.components | extra).items() if key in inspect.signature(cls.__init__).parameters
    }
    forms, weights, types = zip(*case["nets"])
    one = len(forms) == 1
    images = [picture(form) for form in forms]
    arguments = {}
    if forms[0] == "lllite":
        unet = load_unet(MODELS / kind / "unet")
        # The first one sees the tokens first: it is the last one that wraps the layer.
        for number in reversed(range(len(forms))):
            with_lllite(unet, number, weights[number], images[number])
        of = of_pipeline(StableDiffusionXLPipeline) | {"unet": unet}
        pipe = StableDiffusionXLPipeline(**of, add_watermarker=False)
    elif forms[0] == "pool":
        pipe = StableDiffusionControlNetPipeline(**of_pipeline(StableDiffusionControlNetPipeline), controlnet=pool(kind))
        arguments = {"image": images[0], "controlnet_conditioning_scale": weights[0]}
    elif forms[0] == "union":
        pipeline = StableDiffusionXLControlNetUnionPipeline
        pipe = pipeline(**of_pipeline(pipeline), add_watermarker=False, controlnet=union(kind))
        arguments = {"control_image": images, "control_mode": list(types), "guess_mode": case["guess"]}
        arguments["controlnet_conditioning_scale"] = list(weights)
    else:
        adapters = [adapter(form, number) for number, form in enumerate(forms)]
        if kind == "sdxl":
            arguments = {"adapter_conditioning_factor": case["end"]}
            pipeline = StableDiffusionXLAdapterPipeline
        else:
            pipeline = StableDiffusionAdapterPipeline
        # Multi-adapters are made by the pipeline of a list.
        pipe = pipeline(**of_pipeline(pipeline), adapter=adapters[0] if one else MultiAdapter(adapters))
        arguments["image"] = images[0] if one else images
        arguments["adapter_conditioning_scale"] = weights[0] if one else list(weights)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = make_sampler(config, case["sampler"])
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    return pipe(
        prompt=case["prompt"],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        num_images_per_prompt=case["images"],
        width=case["size"][0],
        height=case["size"][1],
        generator=generators,
        output_type="latent",
        **arguments,
    ).images


def features(form, width, height):
    """The feature maps of the control image of this size."""
    image = np.array(control_image(width, height), dtype=np.float32).transpose(2, 0, 1)[None] / 255
    with torch.no_grad():
        maps = adapter(form, 0)(torch.tensor(image))
    return {f"features.{form}.{i}": tensor for i, tensor in enumerate(maps)}


def main():
    """Write features and cases of every kind."""
    rows, tensors = [], {}
    tensors |= features("full", 72, 40) | features("light", 72, 40) | features("full_xl", 80, 48)
    for kind, cases in CASES.items():
        base = load_pipeline(kind, load_text(kind))
        for name, changes in cases.items():
            case = {"kind": kind, "name": name, **DEFAULTS, **changes}
            with torch.no_grad():
                tensors[f"{kind}.{name}"] = run_case(kind, base, case)
            rows.append(case)
    save_json_rows(FIXTURES / "adapters.json", rows)
    save_safetensors(FIXTURES / "adapters.safetensors", tensors)
