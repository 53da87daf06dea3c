"""Latents of diffusers' FLUX.1 pipelines for transformers that take channels besides the latents.

Writes `tests/fixtures/extra_channels.safetensors`: final latents `(1, 16, 8, 8)` in f32 for `tiny-dit` with `x_embedder` extended
to 384 columns (`fill`, `fill_part`: a masked image and its mask) and to 128 (`control`, `control_part`, `control_masked`: a
control image). Column c of the extension has half of the weights of column (7 c + 3) modulo 64. Images are those of `inpaint`.
"""

import PIL.Image
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxControlImg2ImgPipeline,
    FluxControlInpaintPipeline,
    FluxControlPipeline,
    FluxFillPipeline,
    FluxTransformer2DModel,
)
from safetensors.torch import load_file

from common import FIXTURES, MODELS, load_json, save_safetensors

FOLDER = MODELS / "tiny-dit"
PROMPT = "a red apple"
LENGTH = 16
LATENTS = 64
SIGMAS = [1.0, 0.75, 0.5, 0.25]
SEED = 42


def transformer(columns):
    config = {key: value for key, value in load_json(FOLDER / "transformer/config.json").items() if key[0] != "_"}
    config.pop("sample_size")
    config = {**config, "patch_size": 1, "num_single_layers": 1, "guidance_embeds": False}
    network = FluxTransformer2DModel(**{**config, "in_channels": columns, "out_channels": LATENTS})
    weights = {key: t.float() for key, t in load_file(FOLDER / "transformer/diffusion_pytorch_model.safetensors").items()}
    own = weights["x_embedder.weight"]
    more = [own[:, [(7 * c + 3) % LATENTS]] * 0.5 for c in range(LATENTS, columns)]
    weights["x_embedder.weight"] = torch.cat([own, *more], dim=1)
    network.load_state_dict(weights)
    return network.eval()


def text():
    """The rows of the tiny text encoder, and the first of them."""
    weights = {key: t.float() for key, t in load_file(FOLDER / "byte_encoder/model.safetensors").items()}
    ids = [byte + 1 for byte in PROMPT.encode()][:LENGTH]
    rows = weights["byte_table.weight"][torch.tensor(ids + [0] * (LENGTH - len(ids)))]
    rows = rows @ weights["out.weight"].T + weights["out.bias"]
    return {"prompt_embeds": rows[None], "pooled_prompt_embeds": rows[:1]}


def run(kind, columns, **arguments):
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0)
    vae = AutoencoderKL.from_pretrained(FOLDER / "vae", torch_dtype=torch.float32).eval()
    pipeline = kind(scheduler=scheduler, vae=vae, transformer=transformer(columns), **parts)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(SEED)
    latents = pipeline(
        **text(), width=64, height=64, num_inference_steps=len(SIGMAS), sigmas=SIGMAS, generator=generator,
        output_type="latent", return_dict=False, **arguments,
    )[0]
    return pipeline._unpack_latents(latents, 64, 64, 8)


def main():
    image = PIL.Image.open(FIXTURES / "inpaint/image.png").convert("RGB")
    mask = PIL.Image.open(FIXTURES / "inpaint/mask.png")
    masked = {"image": image, "mask_image": mask}
    save_safetensors(FIXTURES / "extra_channels.safetensors", {
        "fill": run(FluxFillPipeline, 384, **masked),
        "fill_part": run(FluxFillPipeline, 384, strength=0.5, **masked),
        "control": run(FluxControlPipeline, 128, control_image=mask.convert("RGB")),
        "control_part": run(FluxControlImg2ImgPipeline, 128, control_image=mask.convert("RGB"), image=image, strength=0.5),
        "control_masked": run(FluxControlInpaintPipeline, 128, control_image=mask.convert("RGB"), strength=0.75, **masked),
    })


if __name__ == "__main__":
    main()
