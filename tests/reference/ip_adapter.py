"""IP-Adapters over the tiny models: an image encoder's features, and final latents of diffusers' pipelines.

Encoder and adapters are those of `crates/testkit/src/image_prompt.rs`: all weights follow from their names. Writes
`tests/fixtures/ip_adapter.json`, an array of cases, and `ip_adapter.safetensors`: `{kind}.{name}`, the final latents `(images, 4,
8, 8)`; `pixels`, `embedding` and `penultimate`, what the processor and the encoder make of the image; and `embeds` `(2, 1, 9)`,
the vectors of identities that FaceID takes.
"""

import torch
from diffusers import (
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from diffusers.image_processor import IPAdapterMaskProcessor
from PIL import Image
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

from common import FIXTURES, MODELS, load_json, load_text, make_sampler, randn, save_json_rows, save_safetensors
from control import CONTROL_SIZE, control_image, control_net, values
from image_to_image import inputs
from pipeline import load_pipeline

SIZE = 64
IMAGE_SIZE = (60, 40)
VISION = {
    "hidden_size": 16, "intermediate_size": 32, "projection_dim": 12, "num_hidden_layers": 3, "num_attention_heads": 2,
    "image_size": 24, "patch_size": 8, "hidden_act": "gelu",
}
RESAMPLER = 16
QUERIES = 3
IDENTITY = 9
DEFAULTS = {
    "prompt": "a red apple",
    "seed": 42,
    "steps": 6,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "ddim",
    "task": "txt2img",
    # Of each adapter its form, its weight, the part of the evaluations up to which it acts, its blocks and its mask.
    "adapters": [["plain", 1.0, 1.0, "", ""]],
}
TWO = [["plain", 0.7, 1.0, "", ""], ["plus", 0.5, 1.0, "", ""]]
CASES = {
    "sd1": {
        "plain": {},
        "plus": {"adapters": [["plus", 1.0, 1.0, "", ""]], "sampler": "euler"},
        "full": {"adapters": [["full", 0.8, 1.0, "", ""]]},
        "face": {"adapters": [["face", 0.9, 1.0, "", ""]]},
        "two": {"adapters": TWO, "sampler": "euler_a", "images": 2},
        "part": {"adapters": [["plain", 1.0, 0.5, "", ""]]},
        "masks": {"adapters": [["plain", 1.0, 1.0, "", "left"], ["plus", 0.8, 1.0, "", "right"]]},
        "unguided": {"cfg_scale": 1.0, "adapters": TWO},
        "control": {"task": "control"},
        "img2img": {"task": "img2img", "sampler": "dpmpp_2m"},
    },
    "sdxl": {
        "plain": {"sampler": "euler"},
        "two": {"adapters": TWO},
        "style": {"adapters": [["plain", 1.2, 1.0, "style", ""]]},
    },
}


def tensor(key, shape):
    """`tensor` of `crates/testkit/src/image_prompt.rs`."""
    count = 1
    for size in shape:
        count *= size
    if key.endswith(".bias"):
        found = values(key, count, 0.2)
    elif key.endswith("latents") or "embedding" in key and "patch" not in key:
        found = values(key, count, 2.0)
    elif len(shape) == 1:
        found = values(key, count, 0.5) + 1.0
    else:
        fan_in = count // shape[0]
        found = values(key, count, 1.5 * (12.0 / fan_in) ** 0.5)
    return found.reshape(shape)


def vision():
    """The image encoder."""
    encoder = CLIPVisionModelWithProjection(CLIPVisionConfig(**VISION)).eval()
    state = encoder.state_dict()
    renamed = {key: f"vision/{key}" for key in state}
    encoder.load_state_dict(
        {key: value if key.endswith("position_ids") else tensor(renamed[key], tuple(value.shape)) for key, value in state.items()}
    )
    return encoder


def projection_shapes(form, dim):
    """Names and shapes of the tensors that make tokens."""
    if form == "plain":
        return {"proj.weight": (4 * dim, 12), "proj.bias": (4 * dim,), "norm.weight": (dim,), "norm.bias": (dim,)}
    if form == "full":
        return {
            "proj.0.weight": (16, 16), "proj.0.bias": (16,), "proj.2.weight": (dim, 16), "proj.2.bias": (dim,),
            "proj.3.weight": (dim,), "proj.3.bias": (dim,),
        }
    if form == "face":
        return {
            "proj.0.weight": (2 * IDENTITY, IDENTITY), "proj.0.bias": (2 * IDENTITY,),
            "proj.2.weight": (4 * dim, 2 * IDENTITY), "proj.2.bias": (4 * dim,), "norm.weight": (dim,), "norm.bias": (dim,),
        }
    width = RESAMPLER
    shapes = {"latents": (1, QUERIES, width), "proj_in.weight": (width, 16), "proj_in.bias": (width,)}
    for i in range(4):
        attention, forward = f"layers.{i}.0", f"layers.{i}.1"
        for norm in (f"{attention}.norm1", f"{attention}.norm2", f"{forward}.0"):
            shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
        shapes |= {f"{attention}.to_q.weight": (64, width), f"{attention}.to_kv.weight": (128, width)}
        shapes |= {f"{attention}.to_out.weight": (width, 64)}
        shapes |= {f"{forward}.1.weight": (4 * width, width), f"{forward}.3.weight": (width, 4 * width)}
    shapes |= {"proj_out.weight": (dim, width), "proj_out.bias": (dim,), "norm_out.weight": (dim,), "norm_out.bias": (dim,)}
    return shapes


def attention_layers(unet):
    """Name and module of every attention layer, in the order of `attn_processors`."""
    return [(name, unet.get_submodule(name.removesuffix(".processor"))) for name in unet.attn_processors]


def adapter(unet, number, form):
    """The state of adapter `number`: `image_proj` and `ip_adapter`."""
    dim = unet.config.cross_attention_dim
    name = lambda part, key: f"{number}/{form}/{part}.{key}"
    projection = {key: tensor(name("image_proj", key), shape) for key, shape in projection_shapes(form, dim).items()}
    keys = {}
    for i, (layer, module) in enumerate(attention_layers(unet)):
        if "attn2" in layer:
            for key in (f"{i}.to_k_ip.weight", f"{i}.to_v_ip.weight"):
                keys[key] = tensor(name("ip_adapter", key), (module.to_q.weight.shape[0], dim))
        if form == "face":
            for part in ("to_q", "to_k", "to_v", "to_out"):
                weight = (module.to_out[0] if part == "to_out" else getattr(module, part)).weight
                for side, shape in (("down", (2, weight.shape[1])), ("up", (weight.shape[0], 2))):
                    key = f"{i}.{part}_lora.{side}.weight"
                    keys[key] = 0.25 * tensor(name("ip_adapter", key), shape)
    return {"image_proj": projection, "ip_adapter": keys}


def add_lora(unet, state):
    """Adds the LoRA of a FaceID file to the weights (diffusers' `_load_ip_adapter_loras`, without alpha)."""
    for i, (_, module) in enumerate(attention_layers(unet)):
        for part in ("to_q", "to_k", "to_v", "to_out"):
            down, up = (state["ip_adapter"].get(f"{i}.{part}_lora.{side}.weight") for side in ("down", "up"))
            if down is not None:
                (module.to_out[0] if part == "to_out" else getattr(module, part)).weight.data += up @ down


def half(side):
    """A mask that is white on one side, in another size than the images."""
    mask = Image.new("L", (32, 32))
    mask.paste(255, (0, 0, 14, 32) if side == "left" else (14, 0, 32, 32))
    return mask


def run_case(kind, case, image, embeds):
    """The final latents of one case. The pipeline is made afresh."""
    base = load_pipeline(kind, load_text(kind))
    is_xl = kind == "sdxl"
    extra = ("requires_safety_checker", "safety_checker", "feature_extractor", "image_encoder", "force_zeros_for_empty_prompt")
    parts = {key: part for key, part in base.components.items() if key not in extra}
    flags = {"safety_checker": None, "requires_safety_checker": False, "feature_extractor": None}
    cls = {"txt2img": StableDiffusionPipeline, "img2img": StableDiffusionImg2ImgPipeline}.get(case["task"])
    if is_xl:
        zeros = load_json(MODELS / kind / "model_index.json")["force_zeros_for_empty_prompt"]
        cls, flags = StableDiffusionXLPipeline, {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}
    if case["task"] == "control":
        cls, parts = StableDiffusionControlNetPipeline, parts | {"controlnet": control_net(kind, 0, "full")}
    pipe = cls(**parts, **flags)
    pipe.set_progress_bar_config(disable=True)
    pipe.register_modules(
        image_encoder=vision(),
        feature_extractor=CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}),
    )
    states = [adapter(pipe.unet, number, row[0]) for number, row in enumerate(case["adapters"])]
    for state in states:
        add_lora(pipe.unet, state)
    pipe.unet._load_ip_adapter_weights(states, low_cpu_mem_usage=False)
    scales = [{"up": {"block_0": [0.0, row[1]]}} if row[3] == "style" else row[1] for row in case["adapters"]]
    pipe.set_ip_adapter_scale(scales)
    pipe.scheduler = make_sampler(load_json(MODELS / kind / "scheduler" / "scheduler_config.json"), case["sampler"])

    def after(pipe, i, _, tensors):
        """Ends an adapter as `controlnet_keep` ends a ControlNet."""
        pipe.set_ip_adapter_scale(
            [0.0 if (i + 2) / case["steps"] > row[2] else scale for row, scale in zip(case["adapters"], scales)]
        )
        return tensors

    arguments = {}
    if any(row[2] < 1.0 for row in case["adapters"]):
        arguments["callback_on_step_end"] = after
    if any(row[4] for row in case["adapters"]):
        masks = IPAdapterMaskProcessor().preprocess([half(row[4]) for row in case["adapters"]], height=SIZE, width=SIZE)
        arguments["cross_attention_kwargs"] = {"ip_adapter_masks": [mask.reshape(1, 1, SIZE, SIZE) for mask in masks]}
    if case["task"] == "control":
        arguments |= {"image": control_image(*CONTROL_SIZE)}
    if case["task"] == "img2img":
        arguments |= {"image": inputs()[0], "strength": 0.6}
    else:
        arguments |= {"height": SIZE, "width": SIZE}
    if case["adapters"][0][0] == "face":
        arguments["ip_adapter_image_embeds"] = [embeds]
    else:
        arguments["ip_adapter_image"] = [image] * len(states)
    return pipe(
        prompt=case["prompt"],
        num_inference_steps=case["steps"],
        guidance_scale=case["cfg_scale"],
        num_images_per_prompt=case["images"],
        generator=[torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])],
        output_type="latent",
        **arguments,
    ).images


@torch.no_grad()
def main():
    """Write features and cases."""
    image = control_image(*IMAGE_SIZE)
    pixels = CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})(
        image, return_tensors="pt"
    ).pixel_values
    found = vision()(pixels, output_hidden_states=True)
    embeds = torch.cat([torch.zeros(1, 1, IDENTITY), randn((1, 1, IDENTITY), "ip_adapter", "identity")])
    rows = []
    tensors = {
        "pixels": pixels, "embedding": found.image_embeds, "penultimate": found.hidden_states[-2], "embeds": embeds,
    }
    for kind, cases in CASES.items():
        for name, changes in cases.items():
            case = {"kind": kind, "name": name, **DEFAULTS, **changes}
            tensors[f"{kind}.{name}"] = run_case(kind, case, image, embeds)
            rows.append(case)
    save_json_rows(FIXTURES / "ip_adapter.json", rows)
    save_safetensors(FIXTURES / "ip_adapter.safetensors", tensors)


if __name__ == "__main__":
    main()
