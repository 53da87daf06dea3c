"""Tiny models in single files, as others write them: `tests/fixtures/single/`.

The names of CompVis' files come from diffusers' own conversion scripts, which are no part of its package: `--scripts DIR`
is the folder `scripts` of its repository. Their block numbers are those of the official models, so the tiny ones here
have as many levels and layers. PyTorch writes the pickles, PyPI's `gguf` the GGUF files.
"""

import pickle
import shutil
import sys
import zipfile

import gguf
import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from common import FIXTURES, MODELS, make_sampler, save_json, save_safetensors
from models import SCHEDULERS, model_index, stretch, text_config, vae_blocks

SINGLE = FIXTURES / "single"

UNETS = {
    "sd1": {
        "attention_head_dim": 2,
        "block_out_channels": [4, 4, 4, 4],
        "cross_attention_dim": 8,
        "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
        "layers_per_block": 2,
        "norm_num_groups": 2,
        "sample_size": 8,
        "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    },
    "sdxl": {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 4,
        "attention_head_dim": [1, 2, 4],
        "block_out_channels": [4, 4, 8],
        "cross_attention_dim": 8 + 12,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        "layers_per_block": 2,
        "norm_num_groups": 2,
        "projection_class_embeddings_input_dim": 10 + 6 * 4,
        "sample_size": 8,
        "transformer_layers_per_block": [1, 1, 2],
        "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        "use_linear_projection": True,
    },
}
VAES = {
    kind: {
        "block_out_channels": [2, 2, 4, 4],
        "latent_channels": 4,
        "layers_per_block": 2,
        "norm_num_groups": 2,
        "sample_size": 64,
        "scaling_factor": scale,
        **vae_blocks(4),
    }
    for kind, scale in (("sd1", 0.18215), ("sdxl", 0.13025))
}
TEXTS = {
    "sd1": [("text_encoder", text_config("CLIPTextModel", "quick_gelu", 8, 2, 2, 8, 2))],
    "sdxl": [
        ("text_encoder", text_config("CLIPTextModel", "quick_gelu", 8, 2, 2, 8, 2)),
        ("text_encoder_2", text_config("CLIPTextModelWithProjection", "gelu", 12, 2, 2, 10, 2)),
    ],
}
PROMPT, STEPS, SEED = "a red apple", 4, 42
ROWS, COLUMNS = 2, 512


def write_configs(kind, models):
    """The folder's configurations, without weights; the tokenizers are those of `models/`."""
    root = SINGLE / kind
    save_json(root / "model_index.json", model_index(kind))
    save_json(root / "scheduler" / "scheduler_config.json", SCHEDULERS[kind])
    for name in ("unet", "vae"):
        config = {k: v for k, v in dict(models[name].config).items() if not k.startswith("_") and v is not None}
        save_json(root / name / "config.json", {"_class_name": type(models[name]).__name__, **config})
    for folder, config in TEXTS[kind]:
        save_json(root / folder / "config.json", config)


def make(kind):
    """The networks of one model, with random weights that are exact in f16."""
    models = {
        "unet": stretch(UNet2DConditionModel(**UNETS[kind]), f"single/{kind}/unet", 0.5),
        "vae": stretch(AutoencoderKL(**VAES[kind]), f"single/{kind}/vae"),
    }
    for folder, config in TEXTS[kind]:
        cls = {"CLIPTextModel": CLIPTextModel}.get(config["architectures"][0], CLIPTextModelWithProjection)
        models[folder] = stretch(cls(CLIPTextConfig(**config)).float(), f"single/{kind}/{folder}")
    return models


def latents(kind, models):
    """What diffusers samples."""
    parts = {name: models[name] for name in ("unet", "vae", "text_encoder")}
    parts["tokenizer"] = CLIPTokenizer.from_pretrained(MODELS / kind / "tokenizer")
    parts["scheduler"] = make_sampler(SCHEDULERS[kind])
    if kind == "sdxl":
        parts["text_encoder_2"] = models["text_encoder_2"]
        parts["tokenizer_2"] = CLIPTokenizer.from_pretrained(MODELS / kind / "tokenizer_2")
        pipe = StableDiffusionXLPipeline(**parts, add_watermarker=False)
    else:
        pipe = StableDiffusionPipeline(
            **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        PROMPT,
        height=64,
        width=64,
        num_inference_steps=STEPS,
        guidance_scale=7.0,
        generator=torch.Generator().manual_seed(SEED),
        output_type="latent",
    ).images


def text_state(model):
    """A text encoder's tensors with `text_model.` before their names, as in files of every version."""
    bare = {name.removeprefix("text_model."): tensor for name, tensor in model.state_dict().items()}
    return {n if n.startswith("text_projection") else f"text_model.{n}": t for n, t in bare.items()}


def single_file(kind, models, sd, sdxl):
    """CompVis' names by diffusers' scripts, in f16."""
    script = sdxl if kind == "sdxl" else sd
    unet = script.convert_unet_state_dict(models["unet"].state_dict())
    vae = sdxl.convert_vae_state_dict(models["vae"].state_dict())
    state = {f"model.diffusion_model.{k}": v for k, v in unet.items()}
    state |= {f"first_stage_model.{k}": v for k, v in vae.items()}
    text = text_state(models["text_encoder"])
    if kind == "sdxl":
        state |= {f"conditioner.embedders.0.transformer.{k}": v for k, v in text.items()}
        second = sdxl.convert_openclip_text_enc_state_dict(text_state(models["text_encoder_2"]))
        state |= {f"conditioner.embedders.1.model.{k}": v for k, v in second.items()}
    else:
        state |= {f"cond_stage_model.transformer.{k}": v for k, v in text.items()}
    return {k: v.detach().half().contiguous() for k, v in state.items()}


def write_gguf(path, arch, state, shaped=()):
    """A GGUF file: vectors in f32, the rest in f16. Tensors in `shaped` as rows of 16, with a note of their shape."""
    writer = gguf.GGUFWriter(path, arch)
    for name, tensor in state.items():
        array = tensor.numpy()
        if name in shaped:
            writer.add_array(f"comfy.gguf.orig_shape.{name}", [int(dim) for dim in array.shape])
            array = array.reshape(-1, 16)
        writer.add_tensor(name, array.astype(np.float32) if array.ndim == 1 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_blocks():
    """Random bits in every block layout, and the numbers that `gguf` reads in them."""
    kinds = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
    generator = np.random.default_rng(7)
    writer = gguf.GGUFWriter(SINGLE / "blocks.gguf", "sd1")
    expected = {}
    for name in kinds:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        while True:
            data = generator.integers(0, 256, (ROWS, COLUMNS // elements * size), dtype=np.uint8)
            values = gguf.quants.dequantize(data, kind)
            if np.isfinite(values).all():
                break
            # Scales are f16 among the bits: clear the top bit of their exponents.
            data = data.reshape(-1, size)
            ends = {"Q2_K": [81, 83], "Q3_K": [109], "Q4_K": [1, 3], "Q5_K": [1, 3], "Q6_K": [209]}.get(name, [1, 3])
            data[:, ends] &= 0xBF
            data = data.reshape(ROWS, -1)
            values = gguf.quants.dequantize(data, kind)
            if np.isfinite(values).all():
                break
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = torch.from_numpy(values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_safetensors(SINGLE / "blocks.safetensors", expected)


class System:
    """What pickles that attack do when they are loaded."""

    def __reduce__(self):
        import os

        return (os.system, ("echo attacked",))


def write_refused():
    """Files that must be refused."""
    with zipfile.ZipFile(SINGLE / "system.ckpt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"state_dict": System()}, protocol=2))
    with zipfile.ZipFile(SINGLE / "bomb.ckpt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 20_000_000)


def write_small():
    """Old pickles, views, and 8-bit floats with scales."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    views = {"plain": base, "turned": base.T, "cut": base[1:3, 2:5], "half": base.half(), "word": "not a tensor"}
    torch.save(views, SINGLE / "views.pt")
    torch.save(views, SINGLE / "views_legacy.pt", _use_new_zipfile_serialization=False)
    from safetensors.torch import save_file

    weight = torch.linspace(-3, 3, 24).reshape(4, 6)
    save_file(
        {
            "a.weight": weight.to(torch.float8_e4m3fn),
            "a.scale_weight": torch.tensor(0.5),
            "b.weight": weight.to(torch.float8_e5m2),
            "b.weight_scale": torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
            "c.weight": weight.to(torch.float8_e4m3fn),
            "scaled_fp8": torch.empty(0, dtype=torch.float8_e4m3fn),
        },
        SINGLE / "fp8.safetensors",
    )
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    expected = {
        "a.weight": weight.to(torch.float8_e4m3fn).float() * 0.5,
        "b.weight": weight.to(torch.float8_e5m2).float() * rows,
        "c.weight": weight.to(torch.float8_e4m3fn).float(),
    }
    save_safetensors(SINGLE / "fp8_expected.safetensors", expected)


def main(scripts):
    """Write everything; `scripts` is diffusers' folder of that name."""
    sys.path.insert(0, str(scripts))
    import convert_diffusers_to_original_sdxl as sdxl
    import convert_diffusers_to_original_stable_diffusion as sd

    shutil.rmtree(SINGLE, ignore_errors=True)
    SINGLE.mkdir(parents=True)
    expected = {}
    for kind in ("sd1", "sdxl"):
        models = make(kind)
        write_configs(kind, models)
        expected[kind] = latents(kind, models)
        state = single_file(kind, models, sd, sdxl)
        if kind == "sdxl":
            save_safetensors(SINGLE / "sdxl.safetensors", state)
            continue
        torch.save({"state_dict": state, "global_step": 7, "epoch": 1}, SINGLE / "sd1.ckpt")
        write_gguf(SINGLE / "sd1.gguf", "sd1", state)
        vae = {k.removeprefix("first_stage_model."): v for k, v in state.items() if k.startswith("first")}
        torch.save({"state_dict": vae}, SINGLE / "vae_legacy.pt", _use_new_zipfile_serialization=False)
        # As ComfyUI's converter writes a U-Net: no prefix, some tensors in other shapes.
        names = ["input_blocks.0.0.weight", "input_blocks.1.0.in_layers.2.weight", "out.2.bias"]
        unet = {name: state[f"model.diffusion_model.{name}"] for name in names}
        write_gguf(SINGLE / "comfy.gguf", "sd1", unet, names[:2])
    save_safetensors(SINGLE / "latents.safetensors", expected)
    write_blocks()
    write_small()
    write_refused()
