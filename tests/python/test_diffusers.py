"""`kiln.diffusers` takes scripts that were written for diffusers, with one changed import, and makes their images."""

import pytest
from conftest import MODEL

import kiln
import kiln.diffusers

numpy = pytest.importorskip("numpy")
pil = pytest.importorskip("PIL.Image")

TEXT_TO_IMAGE = """
import torch
from diffusers import AutoPipelineForText2Image

pipeline = AutoPipelineForText2Image.from_pretrained(MODEL, torch_dtype=torch.float32).to("cpu")
pipeline.set_progress_bar_config(disable=True)
generator = torch.Generator("cpu").manual_seed(31)
images = pipeline("a red apple", num_inference_steps=10, generator=generator, guidance_scale=5.0).images
"""

SCHEDULER = """
import torch
from diffusers import DPMSolverMultistepScheduler, StableDiffusionPipeline

pipe = StableDiffusionPipeline.from_pretrained(MODEL, dtype=torch.float32, safety_checker=None, use_safetensors=True)
pipe.set_progress_bar_config(disable=True)
pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config, use_karras_sigmas=True)
generator = [torch.Generator().manual_seed(i) for i in range(2)]
heard = []

def end(pipe, step, timestep, kwargs):
    heard.append((step, float(timestep)))
    return {}

images = pipe(
    prompt=["a rocket", "a cat face"], negative_prompt=["blue", ""], generator=generator, num_inference_steps=8,
    callback_on_step_end=end,
).images
"""

IMAGE_TO_IMAGE = """
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionImg2ImgPipeline

pipe = StableDiffusionImg2ImgPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config)
pipe = pipe.to("cpu")
pipe.set_progress_bar_config(disable=True)
generator = torch.Generator("cpu").manual_seed(5)
output = pipe(
    prompt="a green apple", image=INIT, strength=0.75, guidance_scale=7.5, generator=generator, num_inference_steps=12,
    output_type="np",
)
images = output.images
"""


def run(script):
    values = numpy.add.outer(numpy.arange(128), numpy.arange(128)).astype(numpy.uint8)
    init = pil.fromarray(numpy.stack([values, values[::-1], values[:, ::-1]], axis=2))
    names = {"MODEL": str(MODEL), "INIT": init}
    exec(compile(script, "script", "exec"), names)
    return names, [numpy.asarray(image, dtype=numpy.float32) for image in names["images"]]


@pytest.mark.parametrize("script", [TEXT_TO_IMAGE, SCHEDULER, IMAGE_TO_IMAGE], ids=["text", "scheduler", "image"])
def test_a_script_makes_the_same_images_with_one_changed_import(script):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    theirs, expected = run(script)
    ours, found = run(script.replace("from diffusers import", "from kiln.diffusers import"))
    assert len(found) == len(expected)
    for found, expected in zip(found, expected):
        scale = 255.0 if expected.max() <= 1.0 else 1.0
        assert found.shape == expected.shape
        # Levels of 255; another seed or sampler is off by tens.
        assert numpy.abs(found - expected).mean() * scale < 0.5
    if "heard" in theirs:
        # diffusers hears each prompt's batch at once, Kiln one image after the other.
        assert ours["heard"] == [step for _ in range(2) for step in theirs["heard"]]


@pytest.fixture(scope="module")
def pipe():
    return kiln.diffusers.StableDiffusionPipeline.from_pretrained(MODEL)


def make(pipe, prompt="a rocket", **arguments):
    return pipe(prompt, num_inference_steps=2, width=64, height=64, **arguments)


def test_seeds_and_outputs(pipe):
    seeded = lambda seed: kiln.diffusers.Generator().manual_seed(seed)
    both = make(pipe, num_images_per_prompt=2, generator=seeded(1), output_type="np")
    assert both.images.shape == (2, 64, 64, 3) and both.nsfw_content_detected is None
    second = make(pipe, generator=seeded(2), output_type="np", return_dict=False)[0]
    assert (both.images[1] == second[0]).all()
    listed = make(pipe, generator=[seeded(2)]).images[0]
    assert (numpy.asarray(listed) == (second[0] * 255).round()).all()
    own = pipe.engine.txt2img("a rocket", steps=2, width=64, height=64, cfg_scale=7.5, seed=2, emphasis="none")[0]
    assert (numpy.asarray(listed) == own.numpy()).all()
    assert len(make(pipe, ["a", "b"], num_images_per_prompt=2).images) == 4


def test_tensors_come_out(pipe):
    torch = pytest.importorskip("torch")
    assert make(pipe, output_type="pt").images.shape == (1, 3, 64, 64)
    assert make(pipe, output_type="latent").images.shape == (1, 4, 8, 8)
    generator = torch.Generator().manual_seed(1)
    make(pipe, generator=generator)
    with pytest.raises(kiln.RequestError, match="has drawn numbers before"):
        make(pipe, generator=generator)
    make(pipe, generator=generator.manual_seed(1))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"steps": 3}, "steps"),
        ({"latents": [1]}, "latents"),
        ({"prompt_embeds": [1]}, "prompt_embeds"),
        ({"output_type": "jpeg"}, "output_type"),
        ({"eta": 0.5}, "eta"),
        ({"generator": 3}, "generator"),
        ({"generator": []}, "generator"),
        ({"negative_prompt": ["a", "b"]}, "negative_prompt"),
        ({"cross_attention_kwargs": {"gligen": 1}}, "cross_attention_kwargs"),
        ({"guidance_rescale": 2.0}, "guidance_rescale"),
    ],
)
def test_what_is_not_taken_is_an_error(pipe, arguments, field):
    pipe.scheduler = kiln.diffusers.EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    with pytest.raises(kiln.RequestError) as raised:
        make(pipe, **arguments)
    assert raised.value.field == field


def test_schedulers_are_made_from_the_models_configuration(pipe):
    other = kiln.diffusers.DPMSolverMultistepScheduler.from_config(pipe.scheduler.config, algorithm_type="sde-dpmsolver++")
    assert other._fields() == {"sampler": "dpmpp_2m_sde"} and other.config.algorithm_type == "sde-dpmsolver++"
    again = kiln.diffusers.DPMSolverMultistepScheduler.from_config(other.config, use_karras_sigmas=True)
    assert again._fields() == {"sampler": "dpmpp_2m_sde", "scheduler": "karras"}
    assert kiln.diffusers.LCMScheduler.from_pretrained(MODEL, subfolder="scheduler")._fields() == {"sampler": "lcm"}
    with pytest.raises(kiln.RequestError, match="`rescale_betas_zero_snr` of EulerDiscreteScheduler"):
        kiln.diffusers.EulerDiscreteScheduler.from_config(pipe.scheduler.config, rescale_betas_zero_snr=True)
    with pytest.raises(kiln.RequestError, match="another configuration than the model"):
        pipe.scheduler = kiln.diffusers.EulerDiscreteScheduler.from_config({**pipe.scheduler.config, "beta_end": 0.5})
    with pytest.raises(kiln.RequestError, match="not one of kiln.diffusers"):
        pipe.scheduler = object()


def test_models_are_opened_as_asked():
    open = kiln.diffusers.StableDiffusionPipeline.from_pretrained
    for arguments, field in [({"custom_pipeline": "x"}, "custom_pipeline"), ({"safety_checker": 1}, "safety_checker"),
                             ({"torch_dtype": "int8"}, "torch_dtype")]:
        with pytest.raises(kiln.RequestError) as raised:
            open(MODEL, **arguments)
        assert raised.value.field == field
    pipe = kiln.diffusers.DiffusionPipeline.from_pretrained(MODEL, dtype="bfloat16")
    assert type(pipe) is kiln.diffusers.StableDiffusionPipeline and pipe.device == "cpu"
    with pytest.raises(kiln.RequestError, match="`device` is 'mps'"):
        pipe.to("mps")
    pipe.enable_vae_slicing()
    pipe.enable_vae_tiling()
    image = make(pipe, generator=kiln.diffusers.Generator().manual_seed(1)).images[0]
    begun = kiln.diffusers.AutoPipelineForImage2Image.from_pipe(pipe)
    assert begun.engine is pipe.engine
    assert begun("a dog", image, strength=0.5, num_inference_steps=4).images[0].size == (64, 64)
    mask = pil.new("L", (64, 64), 255)
    painted = kiln.diffusers.AutoPipelineForInpainting.from_pipe(pipe)
    assert painted("a dog", image, mask, 64, 64, num_inference_steps=2).images[0].size == (64, 64)


def test_loras_have_strengths(pipe):
    lora = MODEL.parent / "emoji-lcm-lora"
    file = next(lora.glob("*.safetensors"))
    seeded = lambda: kiln.diffusers.Generator().manual_seed(1)
    plain = numpy.asarray(make(pipe, generator=seeded()).images[0])
    pipe.load_lora_weights(lora, weight_name=file.name, adapter_name="lcm")
    changed = numpy.asarray(make(pipe, generator=seeded()).images[0])
    assert (changed != plain).any()
    assert (numpy.asarray(make(pipe, generator=seeded(), cross_attention_kwargs={"scale": 0.0}).images[0]) == plain).all()
    pipe.set_adapters("lcm", 0.5)
    half = numpy.asarray(make(pipe, generator=seeded()).images[0])
    assert (half != changed).any() and (half != plain).any()
    pipe.unload_lora_weights()
    assert (numpy.asarray(make(pipe, generator=seeded()).images[0]) == plain).all()


def test_a_callback_may_end_a_call(pipe):
    def end(pipe, step, timestep, kwargs):
        pipe._interrupt = True
        return {}

    with pytest.raises(kiln.Stopped):
        make(pipe, callback_on_step_end=end)
    with pytest.raises(kiln.RequestError, match="changes latents"):
        make(pipe, callback_on_step_end=lambda *_: {"latents": 1})
