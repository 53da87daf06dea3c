#!/usr/bin/env python3
"""Writes a model with random weights and the shapes of a preset, to measure whole calls without a download.

    benches/random_model.py PRESET FOLDER [--dtype bf16] [--device cuda]

Of a model with a U-Net, FOLDER becomes a folder of diffusers, with the small model's tokenizer and scheduler: `-m FOLDER`. Otherwise
FOLDER gets a file for each network: transformer.safetensors, text_encoder.safetensors, text_encoder_2.safetensors .., vae.safetensors,
with diffusers' and transformers' names. The program's own tokenizers go with them:

    kiln txt2img "a fox" -m FOLDER/transformer.safetensors --clip-l FOLDER/text_encoder.safetensors --t5xxl .. --vae ..

The configurations are those of crates/models/src/presets. Needs PyTorch, diffusers, transformers, safetensors.
"""

import argparse
import json
import pathlib
import shutil

import diffusers
import torch
import transformers
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRESETS = ROOT / "crates/models/src/presets"
TRANSFORMERS = {
    "sd3": "SD3Transformer2DModel",
    "flux": "FluxTransformer2DModel",
    "flux2": "Flux2Transformer2DModel",
    "z_image": "ZImageTransformer2DModel",
    "qwen_image": "QwenImageTransformer2DModel",
}
PIPELINES = {"sd": "StableDiffusionPipeline", "sdxl": "StableDiffusionXLPipeline"}
AUTOENCODERS = {"flux2": "AutoencoderKLFlux2", "qwen_image": "AutoencoderKLQwenImage"}
ENCODERS = {
    "CLIPTextModel": transformers.CLIPTextConfig,
    "CLIPTextModelWithProjection": transformers.CLIPTextConfig,
    "T5EncoderModel": transformers.T5Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
}
# Numbers of this deviation keep activations finite through deep networks.
DEVIATION = 0.02


def network(make):
    """A network without memory."""
    with torch.device("meta"):
        return make()


def encoder(config: dict):
    name = config["architectures"][0]
    options = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    kind = ENCODERS[name](**options)
    return network(lambda: getattr(transformers, name)(kind))


def write(model, path: pathlib.Path, dtype: torch.dtype, device: str) -> None:
    tensors, seen = {}, set()
    for name, value in model.state_dict().items():
        if not value.is_floating_point() or id(value) in seen or name.startswith("lm_head"):
            continue
        seen.add(id(value))
        is_one = value.dim() == 1 and name.endswith("weight") or name.endswith(("gamma", "running_var"))
        fill = torch.ones(value.shape) if is_one else DEVIATION * torch.randn(value.shape, device=device, dtype=dtype)
        tensors[name] = fill.to("cpu", dtype)
    save_file(tensors, path)
    print(f"{path} {path.stat().st_size / 2**30:.2f} GiB", flush=True)


def write_folder(preset: dict, folder: pathlib.Path, small: pathlib.Path, dtype: torch.dtype, device: str) -> None:
    """A model with a U-Net as a folder of diffusers."""
    networks = {
        "unet": (preset["denoiser"], network(lambda: diffusers.UNet2DConditionModel(**preset["denoiser"]))),
        "vae": (preset["vae"], network(lambda: diffusers.AutoencoderKL(**preset["vae"]))),
    }
    index = {"_class_name": PIPELINES[preset["family"]], "scheduler": ["diffusers", "DDIMScheduler"]}
    shutil.copytree(small / "scheduler", folder / "scheduler", dirs_exist_ok=True)
    for i, config in enumerate(preset["text_encoders"]):
        suffix = f"_{i + 1}" if i else ""
        networks[f"text_encoder{suffix}"] = (config, encoder(config))
        index[f"tokenizer{suffix}"] = ["transformers", "CLIPTokenizer"]
        shutil.copytree(small / "tokenizer", folder / f"tokenizer{suffix}", dirs_exist_ok=True)
    for name, (config, model) in networks.items():
        library, file = ("transformers", "model") if name.startswith("text") else ("diffusers", "diffusion_pytorch_model")
        index[name] = [library, type(model).__name__]
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1))
        write(model, folder / name / f"{file}.safetensors", dtype, device)
    (folder / "model_index.json").write_text(json.dumps(index, indent=1))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("preset", choices=sorted(path.stem for path in PRESETS.glob("*.json")))
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--small", type=pathlib.Path, default=ROOT / "models/emoji", help="the folder of the small model")
    options = arguments.parse_args()
    preset = json.loads((PRESETS / f"{options.preset}.json").read_text())
    known = [*PIPELINES, *TRANSFORMERS]
    if preset["family"] not in known:
        arguments.error(f"{options.preset} is of the family {preset['family']}, and this script knows {', '.join(known)}")
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[options.dtype]
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if preset["family"] in PIPELINES:
        write_folder(preset, options.folder, options.small, dtype, options.device)
        return
    transformer = getattr(diffusers, TRANSFORMERS[preset["family"]])
    vae = getattr(diffusers, AUTOENCODERS.get(preset["family"], "AutoencoderKL"))
    networks = {"transformer": network(lambda: transformer(**preset["denoiser"])), "vae": network(lambda: vae(**preset["vae"]))}
    for i, config in enumerate(preset["text_encoders"]):
        networks["text_encoder" + (f"_{i + 1}" if i else "")] = encoder(config)
    for name, model in networks.items():
        write(model, options.folder / f"{name}.safetensors", dtype, options.device)


if __name__ == "__main__":
    main()
