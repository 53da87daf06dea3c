"""diffusers, measured as `kiln bench` measures Kiln; prints JSON of the form of `kiln bench --json -`.

The networks are those of Kiln's presets with random weights: nothing is downloaded. Eager PyTorch (`--compile`: U-Net, decoder and
text encoders by `torch.compile`), channels-last, `torch.inference_mode`. Stages: `step` (the U-Net over both halves of a guided
batch, and the guidance), `control-step` (the same with a ControlNet), `vae` (latents to one image), `vae-encode` (one image to its
moments), `upscale` (spandrel's RRDBNet in RealESRGAN_x4plus's shape), `text` (77 tokens through all text encoders), `call` (tokens
to a PNG file in memory with `--steps` Euler steps).
"""

import argparse
import io
import math
import sys
from collections.abc import Callable

import diffusers
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, EulerDiscreteScheduler, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import flow_networks
import harness

TOKENS = 77
CFG_SCALE = 7.0


def randomise(network: torch.nn.Module) -> None:
    """Standard deviation 1 / sqrt(fan_in), scales of normalizations 1, biases 0: as in Kiln."""
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=1 / math.sqrt(parameter[0].numel()))
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)


def ready(network: torch.nn.Module, options: argparse.Namespace) -> torch.nn.Module:
    return network.to(dtype=options.torch_dtype, device=options.device, memory_format=torch.channels_last).eval()


def normal(options: argparse.Namespace, *shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(dtype=options.torch_dtype, device=options.device)


def random_unet(preset: dict, options: argparse.Namespace) -> UNet2DConditionModel:
    with torch.device("meta"):  # PyTorch's own initialisation takes longer than the measurement
        unet = UNet2DConditionModel(**preset["denoiser"])
    unet = unet.to_empty(device=options.device)
    randomise(unet)
    return unet


def random_on_device(options: argparse.Namespace, build: Callable) -> torch.nn.Module:
    """A network that is made on the device in its type, with the buffers that its class computes."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(options.torch_dtype)
    try:
        with torch.device(options.device):
            network = build()
    finally:
        torch.set_default_dtype(usual)
    randomise(network)
    return network.eval()


def kept(options: argparse.Namespace, name: str, build: Callable) -> object:
    """What `build` returns. With `--turns` it is built once for all stages, otherwise once for each, so that only the networks of
    one stage are in memory."""
    if not options.turns:
        return build()
    if name not in options.networks:
        options.networks[name] = build()
    return options.networks[name]


def compiled(network: torch.nn.Module, options: argparse.Namespace) -> torch.nn.Module:
    """The network, compiled in place with `--compile`: its outputs are valid until it or another one runs again."""
    if options.compile:
        network.compile(mode="reduce-overhead")
    return network


def denoiser(preset: dict, options: argparse.Namespace) -> torch.nn.Module:
    def build():
        unet = random_unet(preset, options)
        if options.compile:
            unet.fuse_qkv_projections()
        return compiled(ready(unet, options), options)

    return kept(options, "unet", build)


def halves(preset: dict) -> int:
    """Rows of a step for each image: distilled models have no guidance."""
    return 2 if preset.get("guided", True) else 1


def step_inputs(unet: UNet2DConditionModel, preset: dict, options: argparse.Namespace) -> tuple:
    n, height, width = options.batch, preset["height"], preset["width"]
    rows = halves(preset) * n
    latents = normal(options, n, 4, height // 8, width // 8).contiguous(memory_format=torch.channels_last)
    context = normal(options, rows, TOKENS, unet.config.cross_attention_dim)
    added = None
    if unet.config.addition_embed_type == "text_time":
        pooled = unet.config.projection_class_embeddings_input_dim - 6 * unet.config.addition_time_embed_dim
        sizes = torch.tensor([[height, width, 0, 0, height, width]] * rows, device=options.device)
        added = {"text_embeds": normal(options, rows, pooled), "time_ids": sizes.to(options.torch_dtype)}
    return latents, context, added


def guided(prediction: torch.Tensor, rows: int = 2) -> torch.Tensor:
    if rows == 1:
        return prediction.float()
    uncond, cond = prediction.float().chunk(2)
    return uncond + CFG_SCALE * (cond - uncond)


def flow_step(preset: dict, options: argparse.Namespace):
    def build():
        kind = flow_networks.TRANSFORMERS[preset["family"]]
        return compiled(random_on_device(options, lambda: kind(**preset["denoiser"])), options)

    run = flow_networks.step_call(preset, kept(options, "transformer", build), options, normal)
    return lambda: guided(run(), halves(preset))


def step(preset: dict, options: argparse.Namespace):
    if flow_networks.is_flow(preset):
        return flow_step(preset, options)
    unet = denoiser(preset, options)
    latents, context, added = step_inputs(unet, preset, options)
    time_step = torch.tensor(500.0, device=options.device)

    def run():
        rows = torch.cat([latents] * halves(preset))
        both = unet(rows, time_step, encoder_hidden_states=context, added_cond_kwargs=added)
        return guided(both.sample, halves(preset))

    return run


def control_step(preset: dict, options: argparse.Namespace):
    unet = random_unet(preset, options)
    net = ControlNetModel.from_unet(unet)
    randomise(net)
    unet, net = ready(unet, options), ready(net, options)
    unet, net = compiled(unet, options), compiled(net, options)
    latents, context, added = step_inputs(unet, preset, options)
    image = normal(options, 2 * options.batch, 3, preset["height"], preset["width"])
    image = image.contiguous(memory_format=torch.channels_last)

    def run():
        both = torch.cat([latents, latents])
        down, mid = net(
            both, 500, encoder_hidden_states=context, controlnet_cond=image, added_cond_kwargs=added, return_dict=False
        )
        sample = unet(
            both,
            500,
            encoder_hidden_states=context,
            added_cond_kwargs=added,
            down_block_additional_residuals=down,
            mid_block_additional_residual=mid,
        ).sample
        return guided(sample)

    return run


def decoder(preset: dict, options: argparse.Namespace) -> torch.nn.Module:
    """The autoencoder of a preset, or the TAESD in its place."""
    if preset.get("taesd") is None:
        return kl(preset, options)
    vae = AutoencoderTiny(**preset["taesd"])
    randomise(vae)
    return ready(vae, options)


def image_decoder(preset: dict, options: argparse.Namespace) -> torch.nn.Module:
    """The autoencoder, its decoder compiled with `--compile`."""

    def build():
        vae = decoder(preset, options)
        compiled(vae.decoder, options)
        return vae

    return kept(options, "vae", build)


def vae(preset: dict, options: argparse.Namespace):
    vae = image_decoder(preset, options)
    scale = 2 ** (len(preset["vae"]["block_out_channels"]) - 1)
    channels = preset["vae"].get("latent_channels", 4)
    latents = normal(options, 1, channels, preset["height"] // scale, preset["width"] // scale)
    latents = latents.contiguous(memory_format=torch.channels_last)
    factor = vae.config.get("scaling_factor", 1.0)
    return lambda: vae.decode(latents / factor).sample.float()


def image(preset: dict, options: argparse.Namespace) -> torch.Tensor:
    pixels = normal(options, 1, 3, preset["height"], preset["width"])
    return pixels.contiguous(memory_format=torch.channels_last)


def kl(preset: dict, options: argparse.Namespace) -> AutoencoderKL:
    """The autoencoder of a preset."""
    config = {**preset["vae"]}
    vae = flow_networks.AUTOENCODERS.get(config.pop("_class_name", None), AutoencoderKL)(**config)
    randomise(vae)
    return ready(vae, options)


def vae_encode(preset: dict, options: argparse.Namespace):
    vae, pixels = kl(preset, options), image(preset, options)
    return lambda: vae.encode(pixels).latent_dist.parameters.float()


def upscale(preset: dict, options: argparse.Namespace):
    from spandrel.architectures.ESRGAN import ESRGAN

    network = ESRGAN(in_nc=3, out_nc=3, num_filters=64, num_blocks=23, scale=4)
    randomise(network)
    network, pixels = ready(network, options), image(preset, options)
    return lambda: network(pixels)


def text_encoders(preset: dict, options: argparse.Namespace) -> list[torch.nn.Module]:
    encoders = []
    for config in preset["text_encoders"]:
        if config["architectures"][0] in flow_networks.ENCODERS:
            config_kind, kind = flow_networks.ENCODERS[config["architectures"][0]]
            encoders.append(random_on_device(options, lambda: kind(config_kind(**config))))
            continue
        with_projection = config["architectures"] == ["CLIPTextModelWithProjection"]
        kind = CLIPTextModelWithProjection if with_projection else CLIPTextModel
        with torch.device(options.device):
            encoder = kind(CLIPTextConfig(**config))
        encoders.append(ready(encoder, options))
    return encoders


def prompt_encoders(preset: dict, options: argparse.Namespace) -> list[torch.nn.Module]:
    """The text encoders, compiled with `--compile`. Where one of them cannot be compiled, all run as they are."""

    def build():
        encoders = text_encoders(preset, options)
        try:
            for encoder in encoders:
                # transformers adds hooks in the first run, which would be compiled too.
                ids = encoder_ids(preset, encoder, options)
                encoder(ids, output_hidden_states=True)
                compiled(encoder, options)(ids, output_hidden_states=True)
        except Exception as error:  # PyTorch's compiler has no error of its own
            if not options.compile:
                raise
            print(f"text encoders: not compiled: {error}", file=sys.stderr)
            return text_encoders(preset, options)
        return encoders

    return kept(options, "text", build)


def token_ids(preset: dict, options: argparse.Namespace) -> torch.Tensor:
    smallest = min(config["vocab_size"] for config in preset["text_encoders"])
    return (torch.arange(TOKENS) % smallest).unsqueeze(0).to(options.device)


def encoder_ids(preset: dict, encoder: torch.nn.Module, options: argparse.Namespace) -> torch.Tensor:
    """The tokens of one text for an encoder: those of CLIP, or as many as a language model of the family gets."""
    if isinstance(encoder, (CLIPTextModel, CLIPTextModelWithProjection)):
        return token_ids(preset, options)
    return torch.arange(flow_networks.tokens(preset)).unsqueeze(0).to(options.device)


def text(preset: dict, options: argparse.Namespace):
    encoders = prompt_encoders(preset, options)
    texts = [(encoder, encoder_ids(preset, encoder, options)) for encoder in encoders]
    return lambda: [encoder(ids, output_hidden_states=True) for encoder, ids in texts]


def png(pixels: torch.Tensor) -> bytes:
    """Pixels of -1 to 1, (1, 3, h, w), as a PNG file."""
    values = ((pixels[0].float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(values.permute(1, 2, 0).contiguous().cpu().numpy()).save(file, "PNG", compress_level=1)
    return file.getvalue()


def whole(preset: dict, options: argparse.Namespace, encode, denoise, decode):
    """A call from its three networks: tokens to conditions (context and, for SDXL, the pooled text), latents with their time and the
    conditions to a prediction, latents to pixels. Weights are random: the latents that are decoded are those of the start, so that
    the pixels keep their range."""
    schedule = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    ids, rows = token_ids(preset, options), halves(preset)
    latents = normal(options, options.batch, 4, preset["height"] // 8, preset["width"] // 8)
    latents = latents.contiguous(memory_format=torch.channels_last)

    def run():
        schedule.set_timesteps(options.steps, device=options.device)
        texts = zip(*(encode(ids) for _ in range(rows)))
        conditions = [torch.cat(text).repeat_interleave(options.batch, 0) for text in texts]
        x = latents.float() * schedule.init_noise_sigma
        for time_step in schedule.timesteps:
            scaled = schedule.scale_model_input(x, time_step).to(latents.dtype)
            # A copy, since a compiled network is compiled again for a part of a tensor.
            guided(denoise(torch.cat([scaled] * rows), time_step.clone(), *conditions), rows)
            x = schedule.step(x, time_step, x).prev_sample
        return [png(decode(latents[i : i + 1])) for i in range(options.batch)]

    return run


def call(preset: dict, options: argparse.Namespace):
    encoders, unet = prompt_encoders(preset, options), denoiser(preset, options)
    vae = image_decoder(preset, options)
    _, _, added = step_inputs(unet, preset, options)

    def encode(ids: torch.Tensor) -> list[torch.Tensor]:
        hidden, pooled = [], []
        for encoder in encoders:
            output = encoder(ids, output_hidden_states=True)
            # Copies: see `compiled`.
            hidden.append((output.last_hidden_state if len(encoders) == 1 else output.hidden_states[-2]).clone())
            pooled += [output.text_embeds.clone()] if "text_embeds" in output else []
        return [torch.cat(hidden, -1), *pooled]

    def denoise(x: torch.Tensor, time_step: torch.Tensor, context: torch.Tensor, *pooled: torch.Tensor) -> torch.Tensor:
        conditions = added and {**added, "text_embeds": pooled[0]}
        return unet(x, time_step, encoder_hidden_states=context, added_cond_kwargs=conditions).sample

    return whole(preset, options, encode, denoise, lambda latents: vae.decode(latents / vae.config.scaling_factor).sample)


STAGES = {
    "step": step,
    "control-step": control_step,
    "vae": vae,
    "vae-encode": vae_encode,
    "upscale": upscale,
    "text": text,
    "call": call,
}


if __name__ == "__main__":
    harness.main("diffusers", f"{diffusers.__version__} (torch {torch.__version__})", __doc__, STAGES)
