"""The tiny autoencoder: two small random ones, and the output of the real TAESD for a test image.

Writes `tests/fixtures/taesd/`: a folder and `{kind}.safetensors` for each random one and, where the real weights are,
`real.safetensors`. README.md lists the keys.
"""

import torch
from diffusers import AutoencoderTiny
from safetensors.torch import load_file

from common import FIXTURES, randn, save_safetensors
from models import check_same, stretch, write_diffusers_model

TAESD = FIXTURES / "taesd"

CONFIGS = {
    # Widths alone: the rest is TAESD's by default.
    "default": {
        "_class_name": "AutoencoderTiny",
        "encoder_block_out_channels": [8, 8, 8, 8],
        "decoder_block_out_channels": [8, 8, 8, 8],
    },
    # Everything else than TAESD's.
    "odd": {
        "_class_name": "AutoencoderTiny",
        "act_fn": "relu",
        "decoder_block_out_channels": [12, 12, 12],
        "encoder_block_out_channels": [6, 6, 6],
        "force_upcast": False,
        "in_channels": 3,
        "latent_channels": 6,
        "latent_magnitude": 2,
        "latent_shift": 0.25,
        "num_decoder_blocks": [1, 0, 2],
        "num_encoder_blocks": [0, 2, 1],
        "out_channels": 3,
        "scaling_factor": 0.5,
        "shift_factor": 0.1,
        "upsample_fn": "nearest",
        "upsampling_scaling_factor": 3,
    },
}
# (images, height, width): of latents, and of images whose sides are not multiples of the factor.
DECODES = [(1, 8, 6), (2, 3, 5)]
ENCODES = [(1, 40, 24), (2, 21, 35)]

FILES = ("taesd_sd_fp16", "taesd_sd_fp8", "taesd_sdxl_fp8")
HEIGHT, WIDTH = 64, 96



def write_tiny(kind):
    """Make, write, read back and run one random autoencoder."""
    model = stretch(AutoencoderTiny.from_config(CONFIGS[kind]), f"taesd/{kind}")
    for name, parameter in model.named_parameters():
        if ".conv.4." in name:
            parameter.copy_((0.5 * parameter).half())  # or the sums of residual blocks would grow
    bias = model.decoder.layers[-1].bias
    bias.copy_((bias + 1).half())  # or the images would be black
    folder = TAESD / kind
    write_diffusers_model(folder, model, CONFIGS[kind])
    vae = AutoencoderTiny.from_pretrained(folder, dtype=torch.float32).eval()
    check_same(model, vae)

    tensors = {}
    for k, (count, height, width) in enumerate(DECODES):
        latents = 3 * randn((count, vae.config.latent_channels, height, width), "taesd", kind, k, "latents")
        tensors[f"d{k}.latents"] = latents
        tensors[f"d{k}.image"] = vae.decode(latents).sample
    for k, (count, height, width) in enumerate(ENCODES):
        image = randn((count, 3, height, width), "taesd", kind, k, "image").clamp(-2, 2) / 2
        tensors[f"e{k}.image"] = image
        tensors[f"e{k}.latents"] = vae.encode(image).latents
    save_safetensors(TAESD / f"{kind}.safetensors", tensors)


def test_image():
    """An image `(height, width, 3)` of bytes: a color gradient, a disc, a checkerboard and thin lines."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    pixels = torch.stack([x * 255 // (WIDTH - 1), y * 255 // (HEIGHT - 1), 255 - (x + y) * 255 // (HEIGHT + WIDTH)], -1)
    pixels[(x - 30) ** 2 + (y - 28) ** 2 < 20**2] = torch.tensor([220, 40, 30])
    pixels[(x - 36) ** 2 + (y - 20) ** 2 < 6**2] = torch.tensor([255, 240, 235])
    board = (x >= 60) & (y < 36)
    pixels[board & ((x // 6 + y // 6) % 2 == 0)] = torch.tensor([30, 110, 60])
    pixels[(y >= 48) & (x % 5 == 0)] = torch.tensor([10, 10, 20])
    return pixels.to(torch.uint8)


def write_real(folder):
    """Encode and decode the image with each file of the real weights."""
    pixels = test_image()
    image = pixels.permute(2, 0, 1)[None].float() / 127.5 - 1
    tensors = {"picture": pixels}
    for name in FILES:
        vae = AutoencoderTiny().eval()
        vae.load_state_dict({k: v.float() for k, v in load_file(folder / f"{name}.safetensors").items()})
        latents = vae.encode(image).latents
        tensors[f"{name}.latents"] = latents
        tensors[f"{name}.image"] = vae.decode(latents).sample
    save_safetensors(TAESD / "real.safetensors", tensors)


def main(folder):
    """Write the random autoencoders, and run the real one in `folder`."""
    for kind in CONFIGS:
        write_tiny(kind)
    if folder.is_dir():
        write_real(folder)
    else:
        print(f"no weights in {folder}: real.safetensors stays as it is")
