"""Single denoising steps of whole pipelines, for teacher-forced comparisons.

Runs some of the cases of `pipeline.py` and of `emoji.py` again and records what diffusers' pipeline passes to
`scheduler.step`: the latents before the step and the guided output of the U-Net. Writes
`tests/fixtures/steps_{kind}.safetensors` for the kinds and for `emoji`:

- `{case}.{call}.latents` `(n, 4, h, w)`: the latents before call `call` of the U-Net, counted from 0, before
  `scale_model_input`.
- `{case}.{call}.output` `(n, 4, h, w)`: the U-Net's output for them in f32, after guidance.
- The note `rounding`: for each `{case}.{call}` and each of `f16` and `bf16`, how far PyTorch is from that output when
  text encoders and U-Net run in that type: `[cosine, error]`, the error being the mean absolute difference over the
  mean absolute value. The guidance is f32, as Kiln's is. This is how much the networks amplify rounding.

The first, the middle and the last call of each case are kept. The run is the one of `pipeline_{kind}.json` or
`emoji.json`: its final latents must be those of the fixture.
"""

import copy
import functools
import json

import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file

import emoji
import pipeline
from common import FIXTURES, KINDS, MODELS, load_json, load_text, save_safetensors

# Cases that differ in prompt, negative prompt, guidance, seed, size or batch, and one for every kind of sampler.
CASES = (
    "folder",
    "ddim_20",
    "euler_a_20",
    "heun",
    "ddpm",
    "odd",
    "odd_small",
    "three_odd_euler_a",
    "guidance_1",
    "guidance_3",
    "negative",
    "empty_prompt",
    "long",
    "long_negative",
    "long_both",
)
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class Stop(Exception):
    """Ends a run of which only the first call of the U-Net matters."""


def record_steps(scheduler, calls):
    """Append latents and output of each call of the scheduler's `step` to `calls`."""
    step = scheduler.step

    # The pipeline reads the signature to see whether `step` takes a generator.
    @functools.wraps(step)
    def recorded(model_output, timestep, sample, *args, **kwargs):
        calls.append((sample.clone(), model_output.clone()))
        return step(model_output, timestep, sample, *args, **kwargs)

    scheduler.step = recorded


def record_inputs(unet, inputs, stop=False):
    """Append the arguments of each call of the U-Net to `inputs`. Returns the hook."""

    def hook(_, args, kwargs):
        inputs.append((args, dict(kwargs)))
        if stop:
            raise Stop

    return unet.register_forward_pre_hook(hook, with_kwargs=True)


def alike(found, expected):
    """Cosine and mean relative error, in f64."""
    found, expected = found.double().flatten(), expected.double().flatten()
    cosine = found @ expected / (found.norm() * expected.norm())
    error = (found - expected).abs().mean() / expected.abs().mean()
    return [float(f"{cosine:.7f}"), float(f"{error:.3e}")]


def steps(name, run, pipe, low_pipes, scale, expected):
    """Tensors and rounding of one case. `run(pipe, calls)` runs it and appends its steps to `calls`."""
    calls, inputs = [], []
    hook = record_inputs(pipe.unet, inputs)
    latents = run(pipe, calls)
    hook.remove()
    assert len(calls) == len(inputs)
    # The run of the fixture, but for the rounding of another machine.
    torch.testing.assert_close(latents, expected, rtol=0, atol=1e-4 * float(expected.std()))
    conditions = {}
    for dtype, low in low_pipes.items():
        first = []
        hook = record_inputs(low.unet, first, stop=True)
        try:
            run(low, [])
        except Stop:
            pass
        hook.remove()
        conditions[dtype] = first[0][1]
    tensors, rounding = {}, {}
    for call in sorted({0, len(calls) // 2, len(calls) - 1}):
        key, (sample, output) = f"{name}.{call}", calls[call]
        tensors[f"{key}.latents"], tensors[f"{key}.output"] = sample, output
        (scaled, timestep), _ = inputs[call]
        rounding[key] = {}
        for dtype, low in low_pipes.items():
            found = low.unet(scaled.to(DTYPES[dtype]), timestep, **conditions[dtype])[0].float()
            if scale > 1:
                negative, positive = found.chunk(2)
                found = negative + scale * (positive - negative)
            rounding[key][dtype] = alike(found, output)
    return tensors, rounding


def tiny(kind):
    """The steps of a tiny model's cases."""
    config = load_json(MODELS / kind / "scheduler" / "scheduler_config.json")
    expected = load_file(FIXTURES / f"pipeline_{kind}.safetensors")
    make_sampler = pipeline.make_sampler

    def loaded(dtype):
        pairs = load_text(kind)
        pipe = pipeline.load_pipeline(kind, pairs)
        pipe.to(dtype)
        return pairs, pipe

    pairs, pipe = loaded(torch.float32)
    low = {name: loaded(dtype) for name, dtype in DTYPES.items()}
    pairs_of = {id(pipe): pairs} | {id(low_pipe): low_pairs for low_pairs, low_pipe in low.values()}
    low_pipes = {name: low_pipe for name, (_, low_pipe) in low.items()}
    tensors, rounding = {}, {}
    for name in CASES:
        case = {**pipeline.DEFAULTS, **pipeline.CASES[name]}

        def run(pipe, calls, case=case):
            def recorded(*args):
                sampler = make_sampler(*args)
                record_steps(sampler, calls)
                return sampler

            pipeline.make_sampler = recorded
            try:
                arguments = pipeline.conditioning(pipe, pairs_of[id(pipe)], case)[0]
                return pipeline.run_case(pipe, config, case, arguments)
            finally:
                pipeline.make_sampler = make_sampler

        found = steps(name, run, pipe, low_pipes, case["cfg_scale"], expected[name])
        tensors |= found[0]
        rounding |= found[1]
    return tensors, rounding


def trained(model):
    """The steps of the emoji model's first and last prompts."""
    pipe = StableDiffusionPipeline.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    low_pipes = {name: copy.deepcopy(pipe).to(dtype) for name, dtype in DTYPES.items()}
    for low in low_pipes.values():
        low.set_progress_bar_config(disable=True)
    expected = load_file(FIXTURES / "emoji.safetensors")
    settings, tensors, rounding = emoji.SETTINGS, {}, {}
    for prompt in (emoji.PROMPTS[0], emoji.PROMPTS[-1]):
        name = prompt.replace(" ", "_")

        def run(pipe, calls, prompt=prompt):
            step = pipe.scheduler.step
            record_steps(pipe.scheduler, calls)
            try:
                return pipe(
                    prompt,
                    num_inference_steps=settings["steps"],
                    guidance_scale=settings["cfg_scale"],
                    width=settings["width"],
                    height=settings["height"],
                    generator=torch.Generator("cpu").manual_seed(settings["seed"]),
                    output_type="latent",
                ).images
            finally:
                pipe.scheduler.step = step

        found = steps(name, run, pipe, low_pipes, settings["cfg_scale"], expected[name])
        tensors |= found[0]
        rounding |= found[1]
    return tensors, rounding


def main(model):
    """Write the steps of every kind, and of the emoji model in the folder `model`."""
    for kind in (*KINDS, "emoji"):
        tensors, rounding = trained(model) if kind == "emoji" else tiny(kind)
        save_safetensors(FIXTURES / f"steps_{kind}.safetensors", tensors, {"rounding": json.dumps(rounding)})
