"""`kiln.diffusers` has the pipelines of Stable Diffusion 3 and FLUX.1, with the arguments of diffusers."""

import json
import os

import pytest
from conftest import ROOT

import kiln
import kiln.diffusers
from kiln.diffusers import (
    AutoPipelineForImage2Image,
    AutoPipelineForInpainting,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxPipeline,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3InpaintPipeline,
    StableDiffusion3Pipeline,
)

numpy = pytest.importorskip("numpy")
pil = pytest.importorskip("PIL.Image")

MODEL = ROOT / "models" / "emoji-sd3"
#: Tiny models with what diffusers makes of them, where they are there.
FAMILIES = os.path.join(os.environ.get("KILN_SHARED") or ROOT.parent / "shared", "data", "families")
needs_cases = pytest.mark.skipif(not os.path.isdir(FAMILIES), reason="needs ../shared/data")


@pytest.fixture(scope="module")
def pipe():
    pipe = StableDiffusion3Pipeline.from_pretrained(MODEL, torch_dtype="float32")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def engine():
    with kiln.Engine(MODEL, device="cpu", dtype="f32") as engine:
        yield engine


def seeded(seed):
    return kiln.diffusers.Generator().manual_seed(seed)


def make(pipe, prompt="a rocket", **arguments):
    size = {} if "image" in arguments and "mask_image" not in arguments else {"width": 64, "height": 64}
    return pipe(prompt, num_inference_steps=3, generator=seeded(5), **size, **arguments).images[0]


def own(engine, prompt="a rocket", **options):
    options = {"steps": 3, "width": 64, "height": 64, "seed": 5, "cfg_scale": 7.0, "emphasis": "none", **options}
    init = options.pop("init", None)
    return (engine.txt2img(prompt, **options) if init is None else engine.img2img(prompt, init, **options))[0].numpy()


def same(found, expected):
    return (numpy.asarray(found) == numpy.asarray(expected)).all()


def test_the_engine_runs_the_model(engine):
    assert engine.defaults["family"] == "sd3" and engine.defaults["guidance"] is None
    assert (engine.defaults["steps"], engine.defaults["sampler"]) == (20, "euler")
    assert not same(own(engine), own(engine, shift=3.0))
    assert same(own(engine, batch_size=2), own(engine))
    stages = [stage["stage"] for stage in engine.plan(width=64, height=64)["plans"][0]["stages"]]
    assert stages == ["encode", "denoise", "decode"]


def test_texts_make_the_images_of_the_engine(pipe, engine):
    assert same(make(pipe), own(engine, max_length=256))
    assert same(make(pipe, prompt_2="a rocket", prompt_3="a rocket", max_sequence_length=77), own(engine, max_length=77))
    assert same(make(pipe, negative_prompt="blue", guidance_scale=3.0), own(engine, negative_prompt="blue", cfg_scale=3.0))
    skipped = make(pipe, skip_guidance_layers=[1, 2], skip_layer_guidance_stop=0.9)
    assert same(skipped, own(engine, slg_layers="1,2", slg_scale=2.8, slg_start=0.01, slg_end=0.9))
    both = pipe(["a rocket", "a pear"], num_inference_steps=3, generator=[seeded(5), seeded(5)], width=64, height=64)
    assert type(both).__name__ == "StableDiffusion3PipelineOutput" and list(both.keys()) == ["images"]
    assert same(both.images[0], own(engine)) and same(both.images[1], own(engine, "a pear"))


def test_images_and_masks_are_resized(pipe, engine):
    values = numpy.add.outer(numpy.arange(80), numpy.arange(80)).astype(numpy.uint8)
    init = pil.fromarray(numpy.stack([values, values[::-1], values[:, ::-1]], axis=2))
    mask = pil.new("L", (80, 80), 0)
    mask.paste(255, (0, 0, 40, 80))
    varied = StableDiffusion3Img2ImgPipeline.from_pipe(pipe)
    found = make(varied, image=init, strength=0.5, width=64, height=64)
    assert same(found, own(engine, init=init, strength=0.5, resize_mode="stretch"))
    filled = StableDiffusion3InpaintPipeline.from_pipe(pipe)
    found = make(filled, image=init, mask_image=mask, strength=0.8)
    assert same(found, own(engine, init=init, mask=mask, strength=0.8, resize_mode="stretch", paste_back=False))
    latents = make(pipe, output_type="latent")
    assert latents.shape == (4, 8, 8)
    assert make(varied, image=latents[None], strength=0.5).size == (64, 64)


def test_schedulers_of_flow_models(pipe, engine):
    assert isinstance(pipe.scheduler, FlowMatchEulerDiscreteScheduler) and pipe.scheduler.shift == 1.0
    config = pipe.scheduler.config
    try:
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(config, shift=3.0)
        assert same(make(pipe), own(engine, shift=3.0))
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(config, use_karras_sigmas=True)
        assert same(make(pipe), own(engine, scheduler="karras"))
        pipe.scheduler = FlowMatchHeunDiscreteScheduler.from_config(config)
        assert same(make(pipe), own(engine, sampler="heun"))
        flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(config, **flow, flow_shift=3.0)
        assert same(make(pipe), own(engine, sampler="dpmpp_2m", shift=3.0))
        with pytest.raises(kiln.RequestError) as raised:
            DPMSolverMultistepScheduler.from_config(config)
        assert raised.value.field == "use_flow_sigmas"
    finally:
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(config)


def test_classes_are_chosen_by_the_model(pipe):
    assert type(DiffusionPipeline.from_pretrained(MODEL)) is StableDiffusion3Pipeline
    assert type(AutoPipelineForImage2Image.from_pipe(pipe)) is StableDiffusion3Img2ImgPipeline
    assert type(AutoPipelineForInpainting.from_pretrained(MODEL)) is StableDiffusion3InpaintPipeline
    assert pipe.transformer.config.num_layers == 6
    with pytest.raises(kiln.RequestError, match="no such pipeline"):
        DiffusionPipeline.from_pretrained(MODEL, enable_pag=True)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"prompt_3": "another"}, "prompt_3"),
        ({"max_sequence_length": 1000}, "max_sequence_length"),
        ({"clip_skip": 1}, "clip_skip"),
        ({"skip_guidance_layers": "1"}, "skip_guidance_layers"),
        ({"mu": 0.5}, "mu"),
        ({"eta": 0.5}, "eta"),
        ({"true_cfg_scale": 2.0}, "true_cfg_scale"),
        ({"joint_attention_kwargs": {"ip_adapter_masks": 1}}, "joint_attention_kwargs"),
    ],
)
def test_what_is_not_taken_is_an_error(pipe, arguments, field):
    with pytest.raises(kiln.RequestError) as raised:
        make(pipe, **arguments)
    assert raised.value.field == field


def test_callbacks_hear_of_steps(pipe):
    heard = []

    def end(pipe, step, timestep, kwargs):
        heard.append((step, round(float(timestep)), kwargs["latents"].shape))
        return {"latents": 0.5 * kwargs["latents"]}

    changed = make(pipe, callback_on_step_end=end)
    assert heard == [(0, 1000, (1, 4, 8, 8)), (1, 501, (1, 4, 8, 8)), (2, 1, (1, 4, 8, 8))], heard
    assert not same(changed, make(pipe))


CLASSES = {
    "sd3": (StableDiffusion3Pipeline, StableDiffusion3Img2ImgPipeline, StableDiffusion3InpaintPipeline),
    "flux": (FluxPipeline, FluxImg2ImgPipeline, FluxInpaintPipeline),
}
#: Cases by their names, with arguments that `cases.json` has not.
NAMES = {
    "sd3-plain-96x64-3": {},
    "sd3-img2img-96x64-3": {"strength": 0.55},
    "sd3-inpaint-96x64-3": {"strength": 0.8},
    "sd35_medium-slg-96x64-9": {"skip_guidance_layers": [1, 2], "skip_layer_guidance_stop": 0.6},
    "flux_schnell-plain-96x64-3": {"max_sequence_length": 256},
    "flux_dev-guidance-128x96-13": {},
    "flux_dev-truecfg-96x64-14": {},
    "flux_dev-img2img-96x64-3": {"strength": 0.7, "guidance_scale": 3.5},
    "flux_dev-inpaint-96x64-3": {"strength": 0.85, "guidance_scale": 3.5},
}


def latents_of(path):
    data = open(path, "rb").read()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])["latents"]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    return numpy.frombuffer(data[begin:end], numpy.float32).reshape(entry["shape"])


@needs_cases
@pytest.mark.parametrize("name", NAMES)
def test_shared_data_latents_are_those_of_diffusers(name):
    cases = {case["name"]: case for case in json.load(open(os.path.join(FAMILIES, "cases.json")))}
    case = cases[name]
    argv = case["argv"]
    value = lambda flag, default=None: argv[argv.index(flag) + 1] if flag in argv else default
    family = "flux" if name.startswith("flux") else "sd3"
    image, mask = value("--init"), value("--mask")
    kind = CLASSES[family][(image is not None) + (mask is not None)]
    pipe = kind.from_pretrained(os.path.join(FAMILIES, value("-m")), torch_dtype="float32")
    pipe.set_progress_bar_config(disable=True)
    size = (int(value("-W")), int(value("-H")))
    arguments = {"width": size[0], "height": size[1], "num_inference_steps": int(value("--steps"))}
    scale = float(value("--cfg-scale"))
    if family == "sd3":
        arguments |= {"guidance_scale": scale, "negative_prompt": value("-n")}
    else:
        arguments |= {"guidance_scale": float(value("--guidance", 3.5)), "true_cfg_scale": scale, "negative_prompt": value("-n") or None}
    for field, path in (("image", image), ("mask_image", mask)):
        if path is not None:
            arguments[field] = pil.open(os.path.join(FAMILIES, path))
    found = pipe(value("-p"), generator=seeded(int(value("-s"))), output_type="latent", **{**arguments, **NAMES[name]}).images
    expected = latents_of(os.path.join(FAMILIES, f"{name}.safetensors"))
    if family == "flux":
        expected = kiln.diffusers.tensors.packed(expected)
    assert found.shape == expected.shape
    assert abs(numpy.asarray(found) - expected).max() < 1e-3 * case["std"]


@needs_cases
def test_shared_data_packed_latents_begin_a_call():
    pipe = FluxPipeline.from_pretrained(os.path.join(FAMILIES, "models", "flux_dev"))
    pipe.set_progress_bar_config(disable=True)
    heard = []

    def end(pipe, step, timestep, kwargs):
        heard.append(kwargs["latents"].shape)
        return {"latents": kwargs["latents"]}

    arguments = {"width": 64, "height": 70, "num_inference_steps": 2, "output_type": "latent"}
    noise = numpy.random.default_rng(1).normal(size=(1, 16, 64)).astype(numpy.float32)
    first = pipe("a fox", latents=noise, callback_on_step_end=end, **arguments).images
    again = pipe("a fox", latents=noise, negative_prompt="blue", **arguments).images
    assert heard == [(1, 16, 64)] * 2 and first.shape == (1, 16, 64), "70 is rounded down to 64"
    assert same(first, again), "without `true_cfg_scale` a negative prompt has no effect"
    with pytest.raises(kiln.RequestError) as raised:
        pipe("a fox", latents=noise[:, :4], **arguments)
    assert raised.value.field == "latents"
