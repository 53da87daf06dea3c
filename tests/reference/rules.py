"""Input images by the rules of AUTOMATIC1111's web UI and of ComfyUI, over the tiny models.

`webui.py` and `comfyui.py` have the programs' formulas with their sources. The input is `tests/fixtures/inpaint/image.png` with
`mask.png`, which `inpaint.py` makes; `"alpha"` of a case puts the mask into the image's alpha channel (`init`) or makes it the
alpha channel of the mask (`mask`), `"part"` cuts columns 8 to 72 and rows 4 to 68 out of the mask, so that its size is another.

Writes `tests/fixtures/inpaint/rules.json` with three arrays, and `rules.safetensors`.

- `prepared`: what is made of the files. Tensors in u8, every 127th byte of what they are made from: `{name}.image` (RGB, what the
  encoder gets), `{name}.overlay` (the result of pasting the input around the inverted `image`), `{name}.masked` (the pixels whose
  latents a network with nine channels gets with a weight of 0.75, `(x + 1) * 127.5`, rounded). `{name}.latent_mask` and
  `{name}.network_mask` are the masks of latents, `(h, w)` in 1/255.
- `runs`: of the final latents `(1, 4, h, w)` every second value `{name}` in f32; a row has what differs from `DEFAULTS`.
- `composites`: soft inpainting's mask of the result. Tensors `{name}.before` and `{name}.after` `(1, 4, h, w)`, the mask
  `{name}.kept` `(1, 1, h, w)`, `{name}.seen` `(h, w)` in u8 and `{name}.mask`, every 127th byte of the mask of the whole input.
"""

import json

import numpy as np
import PIL.Image
import torch
from PIL import ImageOps

import comfyui
import webui
from common import FIXTURES, MODELS, encode_prompt, load_text, load_unet, load_vae, randn, save_safetensors
from inpaint import inputs, widen

FOLDER = FIXTURES / "inpaint"
WIDTH, HEIGHT = 56, 48
PROMPT, SEED, SCALE = "a red apple", 42, 5.0
LEVELS = webui.Levels()

PREPARED = {
    "whole": {},
    "no_blur": {"mask_blur": 0},
    "blur_9": {"mask_blur": 9},
    "inverted": {"invert": True, "mask_blur": 2},
    "alpha_mask": {"alpha": "mask"},
    "alpha_init": {"alpha": "init"},
    "part": {"part": True},
    "crop": {"resize_mode": 1},
    "fill_bars": {"resize_mode": 2, "part": True},
    "fill": {"content": "fill"},
    "only_masked": {"only_masked": True, "padding": 4},
    "only_masked_wide": {"only_masked": True, "padding": 32, "content": "fill", "mask_blur": 3},
    "only_masked_inverted": {"only_masked": True, "invert": True, "padding": 0},
    "soft": {"rounded": False, "alpha": "mask"},
    "soft_only_masked": {"rounded": False, "only_masked": True, "padding": 8, "mask_blur": 6},
}
DEFAULTS = {
    "program": "a1111", "kind": "sd1", "channels": 4, "masked": True, "sampler": "euler", "steps": 8, "strength": 0.6,
    "mask_blur": 4, "content": "original", "padding": None, "weight": 1.0, "multiplier": 1.0, "soft": None,
}
RUNS = {
    "image": {"masked": False},
    "image_euler_a": {"masked": False, "sampler": "euler_a"},
    "image_heun": {"masked": False, "sampler": "heun", "strength": 0.75},
    "image_dpmpp_2m": {"masked": False, "sampler": "dpmpp_2m", "kind": "sd2v"},
    "image_ddim": {"masked": False, "sampler": "ddim", "steps": 10},
    "image_whole": {"masked": False, "strength": 1.0},
    "image_noise": {"masked": False, "multiplier": 0.8},
    "mask": {},
    "mask_euler_a": {"sampler": "euler_a", "strength": 0.9},
    "mask_dpmpp_2m": {"sampler": "dpmpp_2m"},
    "mask_v": {"kind": "sd2v"},
    "mask_ddim": {"sampler": "ddim", "steps": 10},
    "mask_ddim_v": {"sampler": "ddim", "steps": 10, "kind": "sd2v"},
    "mask_fill": {"content": "fill", "strength": 0.9},
    "mask_latent_noise": {"content": "latent noise", "strength": 0.9, "multiplier": 0.9},
    "mask_latent_nothing": {"content": "latent nothing", "strength": 1.0},
    "mask_area": {"padding": 4},
    "channels": {"channels": 9},
    "channels_weight": {"channels": 9, "weight": 0.4, "strength": 0.8},
    "channels_image_weight": {"channels": 9, "masked": False, "weight": 0.3},
    "channels_v": {"channels": 9, "kind": "sd2v"},
    "soft": {"soft": {}},
    "soft_options": {"soft": {"bias": 2, "preservation": 1.5, "contrast": 9}, "sampler": "euler_a", "mask_blur": 12},
    "soft_v": {"soft": {"contrast": 1}, "kind": "sd2v", "strength": 0.9},
    "soft_channels": {"soft": {}, "channels": 9, "padding": 8},
    "comfy_image": {"program": "comfy", "masked": False},
    "comfy_image_whole": {"program": "comfy", "masked": False, "strength": 1.0, "sampler": "dpmpp_2m"},
    "comfy_mask": {"program": "comfy"},
    "comfy_mask_whole": {"program": "comfy", "strength": 1.0},
    "comfy_mask_v": {"program": "comfy", "kind": "sd2v", "sampler": "dpmpp_2m"},
    "comfy_channels": {"program": "comfy", "channels": 9},
}
COMPOSITES = {
    "composite": {"soft": {}},
    "composite_options": {"soft": {"influence": 0.6, "threshold": 1.5, "difference_contrast": 4, "preservation": 2}},
    "composite_area": {"soft": {"threshold": 1}, "padding": 8},
}


def sampled(image):
    """Every 127th byte of an image or an array."""
    return torch.from_numpy(np.array(image).reshape(-1)[::127].copy())


def in_bytes(mask):
    """A mask from 0 to 1 in 1/255, which it has exactly."""
    return (mask * 255).round().to(torch.uint8)


def files(case):
    """The image and the mask of a case."""
    image, mask = inputs()
    if case.get("part"):
        mask = mask.crop((8, 4, 72, 68))
    if case.get("alpha") == "init":
        image.putalpha(mask)
    if case.get("alpha") == "mask":
        color = image.copy()
        color.putalpha(mask)
        mask = color
    return image, mask


def prepare(name, case, tensors):
    """A case of `PREPARED` and its row."""
    settings = {key: value for key, value in case.items() if key not in ("alpha", "part")}
    prepared = webui.Prepared(*files(case), WIDTH, HEIGHT, **settings)
    mask, masked = prepared.condition((HEIGHT // 8, WIDTH // 8), 0.75)
    masked = masked[0].permute(1, 2, 0)
    tensors |= {
        f"{name}.image": sampled(prepared.image),
        f"{name}.overlay": sampled(prepared.paste(ImageOps.invert(prepared.image))),
        f"{name}.masked": sampled(((masked + 1) * 127.5).round().to(torch.uint8)),
        f"{name}.latent_mask": in_bytes(prepared.latent_mask((WIDTH // 8, HEIGHT // 8))),
        f"{name}.network_mask": in_bytes(mask[0, 0]),
    }
    return {"name": name, **case}


class Model:
    """A tiny model as both programs run it."""

    def __init__(self, kind, channels):
        unet = load_unet(MODELS / kind / "unet")
        self.unet = widen(unet) if channels == 9 else unet
        self.vae, self.is_v = load_vae(MODELS / kind / "vae"), kind == "sd2v"
        pairs = load_text(kind)
        self.texts = torch.cat([encode_prompt(pairs, text)[0] for text in ("", PROMPT)])
        self.extra, self.timestep = None, LEVELS.t_of

    def encode(self, pixels):
        """The mean of the latents."""
        return self.vae.encode(pixels).latent_dist.mode() * self.vae.config.scaling_factor

    def guided(self, x, t):
        """The network's answer with guidance."""
        x = x if self.extra is None else torch.cat([x, self.extra], 1)
        answer = self.unet(torch.cat([x, x]), t, encoder_hidden_states=self.texts).sample
        without, with_prompt = answer.chunk(2)
        return without + (with_prompt - without) * SCALE

    def image(self, x, sigma):
        """The guided image: `CompVisDenoiser` and `CompVisVDenoiser` of k_diffusion/external.py."""
        norm = (sigma**2 + 1) ** 0.5
        answer = self.guided(x / norm, self.timestep(sigma))
        return x / norm**2 - answer * sigma / norm if self.is_v else x - answer * sigma

    def noise(self, x, t):
        """The guided noise: `CompVisTimestepsDenoiser` and `CompVisTimestepsVDenoiser` of modules/sd_samplers_timesteps.py."""
        answer, a = self.guided(x, torch.tensor(float(t))), LEVELS.alphas_cumprod[t]
        return a.sqrt() * answer + (1 - a).sqrt() * x if self.is_v else answer


def run_webui(case, model):
    """A case of `RUNS` by the web UI."""
    soft = None if case["soft"] is None else {**webui.SOFT, **case["soft"]}
    image, mask = inputs()
    area = {} if case["padding"] is None else {"only_masked": True, "padding": case["padding"]}
    prepared = webui.Prepared(
        image, mask if case["masked"] else None, WIDTH, HEIGHT, mask_blur=case["mask_blur"], content=case["content"],
        rounded=soft is None, **area,
    )
    latents = model.encode(prepared.pixels())
    kept = prepared.latent_mask((WIDTH // 8, HEIGHT // 8)) if case["masked"] else None
    shape = latents.shape[1:]
    if case["content"] == "latent noise":
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
        latents = latents * (1 - kept) + drawn * kept
    if case["content"] == "latent nothing":
        latents = latents * (1 - kept)
    if case["channels"] == 9:
        mask, masked = prepared.condition((HEIGHT // 8, WIDTH // 8), case["weight"])
        model.extra = torch.cat([mask, model.encode(masked)], 1)
    generator = torch.Generator().manual_seed(SEED)
    common = {"steps": case["steps"], "strength": case["strength"], "levels": LEVELS, "kept": kept,
              "multiplier": case["multiplier"]}
    noise = lambda: torch.randn(shape, generator=generator)[None]  # noqa: E731
    if case["sampler"] == "ddim":
        return webui.sample_ddim(model.noise, latents, noise, **common)
    return webui.sample(model.image, latents, noise, sampler=case["sampler"], soft=soft, **common)


def run_comfyui(case, model):
    """A case of `RUNS` by ComfyUI, for an image and a mask of the size of the result."""
    image, mask = (picture.resize((WIDTH, HEIGHT), PIL.Image.LANCZOS) for picture in inputs())
    pixels = torch.from_numpy(np.moveaxis(np.array(image).astype(np.float32) / 255.0, 2, 0)[None]) * 2 - 1
    mask, size = comfyui.unit(mask), (HEIGHT // 8, WIDTH // 8)
    latents = model.encode(pixels)
    kept = comfyui.interpolated(mask, size) if case["masked"] else None
    if case["channels"] == 9:
        small, masked = comfyui.condition(pixels, mask, size)
        model.extra = torch.cat([small, model.encode(masked)], 1)
    model.timestep = lambda sigma: comfyui.timestep(LEVELS, sigma)
    generator = torch.Generator().manual_seed(SEED)
    noise = lambda: torch.randn(latents.shape, generator=generator)  # noqa: E731
    return comfyui.sample(
        model.image, latents, noise, sampler=case["sampler"], steps=case["steps"], strength=case["strength"],
        levels=LEVELS, kept=kept,
    )


def composite(name, case, tensors):
    """A case of `COMPOSITES` and its row."""
    soft = {**webui.SOFT, **case["soft"]}
    area = {} if "padding" not in case else {"only_masked": True, "padding": case["padding"]}
    prepared = webui.Prepared(*inputs(), WIDTH, HEIGHT, mask_blur=6, rounded=False, **area)
    kept = prepared.latent_mask((WIDTH // 8, HEIGHT // 8))
    before = randn((1, 4, HEIGHT // 8, WIDTH // 8), name, "before")
    after = before + randn(before.shape, name, "change") * kept * 0.7
    seen = webui.adaptive_mask(soft, kept, before, after)
    mask = webui.composite_mask(prepared, seen)
    tensors |= {
        f"{name}.before": before, f"{name}.after": after, f"{name}.kept": kept[None, None], f"{name}.seen": torch.from_numpy(seen),
        f"{name}.mask": sampled(mask),
    }
    return {"name": name, **soft, "padding": case.get("padding")}


def main():
    """Write the cases and the results."""
    tensors = {}
    prepared = [prepare(f"prepared.{name}", case, tensors) for name, case in PREPARED.items()]
    for name, changes in RUNS.items():
        case = {**DEFAULTS, **changes}
        model = Model(case["kind"], case["channels"])
        latents = (run_webui if case["program"] == "a1111" else run_comfyui)(case, model)
        tensors[name] = latents.flatten()[::2].contiguous()
    rows = {
        "prepared": prepared,
        "runs": [{"name": name, **changes} for name, changes in RUNS.items()],
        "composites": [composite(name, case, tensors) for name, case in COMPOSITES.items()],
    }
    text = ",\n".join(f'"{key}": [\n' + ",\n".join(map(json.dumps, value)) + "\n]" for key, value in rows.items())
    (FOLDER / "rules.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")
    save_safetensors(FOLDER / "rules.safetensors", tensors)
