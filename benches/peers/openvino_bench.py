"""OpenVINO on the CPU, measured as `kiln bench` measures Kiln; prints JSON of the form of `kiln bench --json -`.

The networks are those of `diffusers_bench.py`, with the same random weights, converted from PyTorch with fixed shapes. Their
precision is that of `--dtype` (`INFERENCE_PRECISION_HINT`). With `--compute int8` convolutions and matrix products are in
8-bit integers: weights and activations by NNCF's post-training quantization with random inputs, the rest in `--dtype`.
Stages: `step` (the U-Net over the rows of a step, and the guidance), `vae` (latents to one image), `vae-encode` (one image to
its moments), `text` (77 tokens), `call` (tokens to a PNG file in memory). The Python that runs this file needs requirements.txt and requirements-openvino.txt.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import openvino
import torch
from diffusers import UNet2DConditionModel

import diffusers_bench as peer
import harness

PRECISIONS = {"f32": "f32", "bf16": "bf16", "f16": "f16"}
# Random inputs for the ranges of activations. Their values change no time.
CALIBRATION_INPUTS = 2


class Function(torch.nn.Module):
    """A network of which one output is taken."""

    def __init__(self, network: torch.nn.Module, output):
        super().__init__()
        self.network, self.output = network, output

    def forward(self, *inputs):
        return self.output(self.network, *inputs)


def quantized(model: openvino.Model, examples: list[torch.Tensor]) -> openvino.Model:
    """The model with convolutions and matrix products in 8-bit integers. What costs time and serves precision alone (SmoothQuant,
    the correction of biases) is left out."""
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, AdvancedSmoothQuantParameters

    def example(index: int) -> list:
        generator = torch.Generator().manual_seed(index)
        random = [torch.randn(x.shape, generator=generator) if x.is_floating_point() else x for x in examples]
        return [x.numpy() for x in random]

    settings = AdvancedQuantizationParameters(
        disable_bias_correction=True,
        smooth_quant_alphas=AdvancedSmoothQuantParameters(matmul=-1, convolution=-1),
    )
    return nncf.quantize(
        model,
        nncf.Dataset([example(i) for i in range(CALIBRATION_INPUTS)]),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=CALIBRATION_INPUTS,
        model_type=nncf.ModelType.TRANSFORMER,
        advanced_parameters=settings,
    )


def converted(
    name: str,
    network: Callable[[], torch.nn.Module],
    output,
    examples: list[torch.Tensor],
    options: argparse.Namespace,
) -> openvino.Model:
    """A network as OpenVINO's model, from the folder of `--models` where it is kept there."""
    shapes = [list(example.shape) for example in examples]
    key = "-".join([options.config, name, *("x".join(map(str, shape)) for shape in shapes), options.compute])
    file = options.models and options.models / f"{key}.xml"
    if file and file.exists():
        return openvino.Core().read_model(file)
    function = Function(network().float().to(memory_format=torch.contiguous_format), output).eval()
    model = openvino.convert_model(function, example_input=tuple(examples), input=shapes)
    if options.compute == "int8":
        model = quantized(model, examples)
    if file:
        options.models.mkdir(parents=True, exist_ok=True)
        openvino.save_model(model, file, compress_to_fp16=False)
    return model


def compiled(name: str, network, output, examples: list[torch.Tensor], options: argparse.Namespace):
    """A function from tensors of the examples' shapes to a tensor."""
    if options.device != "cpu":
        sys.exit(f"--device {options.device}: this program measures the CPU")
    model = converted(name, network, output, examples, options)
    settings = {"INFERENCE_PRECISION_HINT": PRECISIONS[options.dtype], "PERFORMANCE_HINT": "LATENCY"}
    if options.threads:
        settings["INFERENCE_NUM_THREADS"] = options.threads
    ready = openvino.Core().compile_model(model, "CPU", settings)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(ready([tensor.contiguous().numpy() for tensor in inputs])[0])

    return run


def in_f32(options: argparse.Namespace) -> argparse.Namespace:
    """The options with inputs and outputs in f32: OpenVINO converts between the networks' layers."""
    return argparse.Namespace(**{**vars(options), "torch_dtype": torch.float32})


def unet(preset: dict, options: argparse.Namespace):
    with torch.device("meta"):
        shape = UNet2DConditionModel(**preset["denoiser"])
    latents, context, added = peer.step_inputs(shape, preset, options)
    if added is not None:
        sys.exit("this program measures models with one text encoder")
    rows = peer.halves(preset) * options.batch
    examples = [latents.repeat(peer.halves(preset), 1, 1, 1), torch.full((rows,), 500.0), context]

    def output(network, x, time_step, context):
        return network(x, time_step, encoder_hidden_states=context, return_dict=False)[0]

    run = compiled("unet", lambda: peer.random_unet(preset, options), output, examples, options)
    return run, latents, context


def encoder(preset: dict, options: argparse.Namespace):
    if len(preset["text_encoders"]) > 1:
        sys.exit("this program measures models with one text encoder")
    ids = peer.token_ids(preset, options)

    def network() -> torch.nn.Module:
        return peer.text_encoders(preset, options)[0]

    return compiled("text", network, lambda network, ids: network(ids).last_hidden_state, [ids], options), ids


def decoder(preset: dict, options: argparse.Namespace):
    latents = peer.normal(options, 1, 4, preset["height"] // 8, preset["width"] // 8)

    def output(network, latents):
        return network.decode(latents / network.config.scaling_factor, return_dict=False)[0]

    return compiled("vae", lambda: peer.decoder(preset, options), output, [latents], options), latents


def step(preset: dict, options: argparse.Namespace):
    options = in_f32(options)
    run, latents, context = unet(preset, options)
    halves = peer.halves(preset)
    time_step = torch.full((halves * options.batch,), 500.0)
    return lambda: peer.guided(run(torch.cat([latents] * halves), time_step, context), halves)


def vae(preset: dict, options: argparse.Namespace):
    run, latents = decoder(preset, in_f32(options))
    return lambda: run(latents)


def vae_encode(preset: dict, options: argparse.Namespace):
    options = in_f32(options)
    pixels = peer.image(preset, options)

    def output(network, pixels):
        return network.encode(pixels).latent_dist.parameters

    run = compiled("vae-encode", lambda: peer.kl(preset, options), output, [pixels], options)
    return lambda: run(pixels)


def text(preset: dict, options: argparse.Namespace):
    run, ids = encoder(preset, in_f32(options))
    return lambda: run(ids)


def call(preset: dict, options: argparse.Namespace):
    options = in_f32(options)
    encode, _ = encoder(preset, options)  # a model with one text encoder has no pooled text
    denoise, latents, _ = unet(preset, options)
    decode, _ = decoder(preset, options)
    rows = peer.halves(preset) * options.batch

    def predicted(x: torch.Tensor, time_step: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return denoise(x, time_step.float().expand(rows), context)

    return peer.whole(preset, options, lambda ids: [encode(ids)], predicted, decode)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compute", default="native", choices=["native", "int8"])
    parser.add_argument("--models", type=Path, metavar="DIR", help="keeps the converted models here for later calls")


if __name__ == "__main__":
    stages = {"step": step, "vae": vae, "vae-encode": vae_encode, "text": text, "call": call}
    harness.main("openvino", openvino.__version__, __doc__, stages, arguments)
