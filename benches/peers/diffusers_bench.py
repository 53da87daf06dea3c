"""diffusers, measured as `kiln bench` measures Kiln; prints JSON of the form of `kiln bench --json -`.

The networks are those of Kiln's presets with random weights: nothing is downloaded. Eager PyTorch (`--compile`: a compiled
U-Net), channels-last, `torch.inference_mode`. Stages: `step` (the U-Net over both halves of a guided batch, and the guidance),
`control-step` (the same with a ControlNet), `vae` (latents
to one image), `vae-encode` (one image to its moments), `upscale` (spandrel's RRDBNet in RealESRGAN_x4plus's shape), `text` (77
tokens through all text encoders), `call` (tokens to a PNG file in memory with `--steps` Euler steps).
"""

import argparse
import io
import json
import math
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import diffusers
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, EulerDiscreteScheduler, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

PRESETS = Path(__file__).resolve().parents[2] / "crates/models/src/presets"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
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
        unet = UNet2DConditionModel(**preset["unet"])
    unet = unet.to_empty(device="cpu")
    randomise(unet)
    return unet


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


def step(preset: dict, options: argparse.Namespace):
    unet = random_unet(preset, options)
    if options.compile:
        unet.fuse_qkv_projections()
    unet = ready(unet, options)
    if options.compile:
        unet.compile(mode="reduce-overhead")
    latents, context, added = step_inputs(unet, preset, options)

    def run():
        rows = torch.cat([latents] * halves(preset))
        both = unet(rows, 500, encoder_hidden_states=context, added_cond_kwargs=added)
        return guided(both.sample, halves(preset))

    return run


def control_step(preset: dict, options: argparse.Namespace):
    unet = random_unet(preset, options)
    net = ControlNetModel.from_unet(unet)
    randomise(net)
    unet, net = ready(unet, options), ready(net, options)
    if options.compile:
        unet.compile(mode="reduce-overhead")
        net.compile(mode="reduce-overhead")
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


def vae(preset: dict, options: argparse.Namespace):
    vae = decoder(preset, options)
    scale = 2 ** (len(preset["vae"]["block_out_channels"]) - 1)
    latents = normal(options, 1, 4, preset["height"] // scale, preset["width"] // scale)
    latents = latents.contiguous(memory_format=torch.channels_last)
    return lambda: vae.decode(latents / vae.config.scaling_factor).sample.float()


def image(preset: dict, options: argparse.Namespace) -> torch.Tensor:
    pixels = normal(options, 1, 3, preset["height"], preset["width"])
    return pixels.contiguous(memory_format=torch.channels_last)


def kl(preset: dict, options: argparse.Namespace) -> AutoencoderKL:
    """The autoencoder of a preset."""
    vae = AutoencoderKL(**preset["vae"])
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
        with_projection = config["architectures"] == ["CLIPTextModelWithProjection"]
        kind = CLIPTextModelWithProjection if with_projection else CLIPTextModel
        encoders.append(ready(kind(CLIPTextConfig(**config)), options))
    return encoders


def token_ids(preset: dict, options: argparse.Namespace) -> torch.Tensor:
    smallest = min(config["vocab_size"] for config in preset["text_encoders"])
    return (torch.arange(TOKENS) % smallest).unsqueeze(0).to(options.device)


def text(preset: dict, options: argparse.Namespace):
    encoders, ids = text_encoders(preset, options), token_ids(preset, options)
    return lambda: [encoder(ids, output_hidden_states=True) for encoder in encoders]


def png(pixels: torch.Tensor) -> bytes:
    """Pixels of -1 to 1, (1, 3, h, w), as a PNG file."""
    values = ((pixels[0].float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(values.permute(1, 2, 0).contiguous().cpu().numpy()).save(file, "PNG", compress_level=1)
    return file.getvalue()


def whole(preset: dict, options: argparse.Namespace, encode, denoise, decode):
    """A call of models with one text encoder from its three networks: tokens to context, latents with their time and context
    to a prediction, latents to pixels. Weights are random: the latents that are decoded are those of the start, so that the
    pixels keep their range."""
    if len(preset["text_encoders"]) > 1:
        sys.exit("the stage call: this program makes calls of models with one text encoder")
    schedule = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    ids, rows = token_ids(preset, options), halves(preset)
    latents = normal(options, options.batch, 4, preset["height"] // 8, preset["width"] // 8)

    def run():
        schedule.set_timesteps(options.steps)
        context = torch.cat([encode(ids) for _ in range(rows)]).repeat_interleave(options.batch, 0)
        x = latents.float() * schedule.init_noise_sigma
        for time_step in schedule.timesteps:
            scaled = schedule.scale_model_input(x, time_step).to(latents.dtype)
            guided(denoise(torch.cat([scaled] * rows), time_step, context), rows)
            x = schedule.step(x, time_step, x).prev_sample
        return [png(decode(latents[i : i + 1])) for i in range(options.batch)]

    return run


def call(preset: dict, options: argparse.Namespace):
    (encoder,) = text_encoders(preset, options)
    unet, vae = ready(random_unet(preset, options), options), decoder(preset, options)
    return whole(
        preset,
        options,
        lambda ids: encoder(ids).last_hidden_state,
        lambda x, time_step, context: unet(x, time_step, encoder_hidden_states=context).sample,
        lambda latents: vae.decode(latents / vae.config.scaling_factor).sample,
    )


STAGES = {
    "step": step,
    "control-step": control_step,
    "vae": vae,
    "vae-encode": vae_encode,
    "upscale": upscale,
    "text": text,
    "call": call,
}


def measure(stage: str, stages: dict, preset: dict, options: argparse.Namespace) -> dict:
    start = time.perf_counter()
    run = stages[stage](preset, options)
    load_seconds = time.perf_counter() - start
    runs = []
    for i in range(options.warmup + options.runs):
        start = time.perf_counter()
        run()
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()
        if i >= options.warmup:
            runs.append(time.perf_counter() - start)
    seconds = {"median": statistics.median(runs), "min": min(runs), "max": max(runs)}
    return {"stage": stage, "load_seconds": load_seconds, "seconds": seconds, "runs": runs}


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main(engine: str, version: str, description: str, all_stages: dict, arguments=None) -> None:
    """Measures the stages that the command line names out of `all_stages`, each a function from a preset and the options to a
    function that runs it, and prints the report. `arguments` adds an engine's own arguments to the parser."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="emoji", choices=sorted(path.stem for path in PRESETS.glob("*.json")))
    parser.add_argument("--stages", default="step,vae,text")
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="compiles the U-Net: a warm-up of 3 or more is needed")
    parser.add_argument("--size", help="WxH; default: the model's")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="of a call")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    if arguments:
        arguments(parser)
    options = parser.parse_args()
    stages = options.stages.split(",")
    if not set(stages) <= set(all_stages) or min(options.runs, options.batch) < 1:
        parser.error(f"expected --stages out of {','.join(all_stages)}, --runs and --batch of at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    options.torch_dtype = DTYPES[options.dtype]
    preset = json.loads((PRESETS / f"{options.config}.json").read_text())
    if options.size:
        preset["width"], preset["height"] = (int(side) for side in options.size.split("x"))
    torch.manual_seed(0)
    with torch.inference_mode():
        measured = [measure(stage, all_stages, preset, options) for stage in stages]
    on_gpu = options.device.startswith("cuda")
    report = {
        "engine": engine,
        "version": version,
        "commit": None,
        "machine": {
            "processor": cpu_name(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        },
        "dtype": options.dtype,
        "warmup": options.warmup,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "models": [
            {
                "name": options.config,
                "width": preset["width"],
                "height": preset["height"],
                "batch": options.batch,
                "stages": measured,
            }
        ],
    }
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main("diffusers", f"{diffusers.__version__} (torch {torch.__version__})", __doc__, STAGES)
