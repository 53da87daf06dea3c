"""OpenVINO on the CPU, measured as `kiln bench` measures Kiln; prints JSON of the form of `kiln bench --json -`.

The networks are those of `diffusers_bench.py`, with the same random weights, converted from PyTorch with fixed shapes. Their
precision is that of `--dtype` (`INFERENCE_PRECISION_HINT`). Stages: `step` (the U-Net over the rows of a step, and the
guidance), `vae` (latents to one image), `text` (77 tokens), `call` (tokens to a PNG file in memory). The Python that runs this
file needs requirements.txt and requirements-openvino.txt.
"""

import argparse
import sys

import openvino
import torch

import diffusers_bench as peer

PRECISIONS = {"f32": "f32", "bf16": "bf16", "f16": "f16"}


class Function(torch.nn.Module):
    """A network of which one output is taken."""

    def __init__(self, network: torch.nn.Module, output):
        super().__init__()
        self.network, self.output = network, output

    def forward(self, *inputs):
        return self.output(self.network, *inputs)


def compiled(network: torch.nn.Module, output, examples: list[torch.Tensor], options: argparse.Namespace):
    """A function from tensors of the examples' shapes to a tensor."""
    if options.device != "cpu":
        sys.exit(f"--device {options.device}: this program measures the CPU")
    function = Function(network.float().to(memory_format=torch.contiguous_format), output).eval()
    shapes = [list(example.shape) for example in examples]
    model = openvino.convert_model(function, example_input=tuple(examples), input=shapes)
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
    network = peer.random_unet(preset, options)
    latents, context, added = peer.step_inputs(network, preset, options)
    if added is not None:
        sys.exit("this program measures models with one text encoder")
    rows = peer.halves(preset) * options.batch
    examples = [latents.repeat(peer.halves(preset), 1, 1, 1), torch.full((rows,), 500.0), context]

    def output(network, x, time_step, context):
        return network(x, time_step, encoder_hidden_states=context, return_dict=False)[0]

    return compiled(network, output, examples, options), latents, context


def encoder(preset: dict, options: argparse.Namespace):
    if len(preset["text_encoders"]) > 1:
        sys.exit("this program measures models with one text encoder")
    (network,) = peer.text_encoders(preset, options)
    ids = peer.token_ids(preset, options)
    return compiled(network, lambda network, ids: network(ids).last_hidden_state, [ids], options), ids


def decoder(preset: dict, options: argparse.Namespace):
    network = peer.decoder(preset, options)
    scale = network.config.scaling_factor
    latents = peer.normal(options, 1, 4, preset["height"] // 8, preset["width"] // 8)

    def output(network, latents):
        return network.decode(latents / scale, return_dict=False)[0]

    return compiled(network, output, [latents], options), latents


def step(preset: dict, options: argparse.Namespace):
    options = in_f32(options)
    run, latents, context = unet(preset, options)
    halves = peer.halves(preset)
    time_step = torch.full((halves * options.batch,), 500.0)
    return lambda: peer.guided(run(torch.cat([latents] * halves), time_step, context), halves)


def vae(preset: dict, options: argparse.Namespace):
    run, latents = decoder(preset, in_f32(options))
    return lambda: run(latents)


def text(preset: dict, options: argparse.Namespace):
    run, ids = encoder(preset, in_f32(options))
    return lambda: run(ids)


def call(preset: dict, options: argparse.Namespace):
    options = in_f32(options)
    encode, _ = encoder(preset, options)
    denoise, latents, _ = unet(preset, options)
    decode, _ = decoder(preset, options)
    rows = peer.halves(preset) * options.batch

    def predicted(x: torch.Tensor, time_step: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return denoise(x, time_step.float().expand(rows), context)

    return peer.whole(preset, options, encode, predicted, decode)


if __name__ == "__main__":
    stages = {"step": step, "vae": vae, "text": text, "call": call}
    peer.main("openvino", openvino.__version__, __doc__, stages)
