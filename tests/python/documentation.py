"""Scripts with the calls of diffusers' documentation, on the small models. Each leaves its results in `images`."""

from types import SimpleNamespace

import numpy
import PIL.Image
from conftest import MODEL, ROOT

import kiln.diffusers

QUICKTOUR = """
import torch
from diffusers import AutoPipelineForText2Image, DPMSolverMultistepScheduler

pipeline = AutoPipelineForText2Image.from_pretrained(
    MODEL, torch_dtype=torch.float32, use_safetensors=True, low_cpu_mem_usage=True, cache_dir=None, token=None, force_download=False
).to("cpu")
pipeline.set_progress_bar_config(disable=True)
pipeline.scheduler = DPMSolverMultistepScheduler.from_config(pipeline.scheduler.config)
pipeline.enable_attention_slicing()
generator = torch.Generator("cpu").manual_seed(0)
images = pipeline("a red apple", num_inference_steps=3, width=64, height=64, generator=generator)["images"]
"""

CONTROLNET = """
import torch
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline, UniPCMultistepScheduler
from diffusers.utils import load_image, make_image_grid

edges = load_image(EDGES_FILE).resize((64, 64))
controlnet = ControlNetModel.from_pretrained(CONTROL, torch_dtype=torch.float32, use_safetensors=True)
pipe = StableDiffusionControlNetPipeline.from_pretrained(
    MODEL, controlnet=controlnet, torch_dtype=torch.float32, safety_checker=None, image_encoder=None
)
pipe.set_progress_bar_config(disable=True)
pipe.scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config)
output = pipe("a house", image=edges, num_inference_steps=3, generator=torch.manual_seed(2)).images[0]
images = [make_image_grid([edges, output], rows=1, cols=2)]
"""

LCM_LORA = """
import torch
from diffusers import DiffusionPipeline, LCMScheduler

pipe = DiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipe.set_progress_bar_config(disable=True)
pipe.scheduler = LCMScheduler.from_config(pipe.scheduler.config)
pipe.load_lora_weights(LORA_FOLDER, weight_name=LORA_NAME)
pipe.fuse_lora()
pipe.unload_lora_weights()
generator = torch.manual_seed(7)
images = [
    pipe(text, num_inference_steps=3, guidance_scale=0, width=64, height=64, generator=generator).images[0]
    for text in ("a rocket", "a cat face")
]
"""

SCHEDULERS = """
import torch
from diffusers import DiffusionPipeline, EulerAncestralDiscreteScheduler, LMSDiscreteScheduler

pipeline = DiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipeline.set_progress_bar_config(disable=True)
names = {kind.__name__ for kind in pipeline.scheduler.compatibles}
assert {"LMSDiscreteScheduler", "EulerAncestralDiscreteScheduler", "DDIMScheduler"} <= names, names
images = []
generator = torch.Generator("cpu").manual_seed(8)
for kind in (LMSDiscreteScheduler, EulerAncestralDiscreteScheduler):
    pipeline.scheduler = kind.from_config(pipeline.scheduler.config)
    images += pipeline("a sunflower", num_inference_steps=4, width=64, height=64, generator=generator).images
"""

BATCHES = """
import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, DiffusionPipeline
from diffusers.utils import make_image_grid

pipeline = DiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipeline.set_progress_bar_config(disable=True)
pipeline.scheduler = DPMSolverMultistepScheduler.from_config(pipeline.scheduler.config)
pipeline.vae = AutoencoderKL.from_pretrained(MODEL, subfolder="vae", torch_dtype=torch.float32).to("cpu")

def get_inputs(batch_size=1):
    generator = [torch.Generator("cpu").manual_seed(i) for i in range(batch_size)]
    return {"prompt": batch_size * ["a green apple"], "generator": generator, "num_inference_steps": 3}

found = pipeline(**get_inputs(batch_size=2), width=64, height=64).images
images = [make_image_grid(found, rows=1, cols=2), *found]
"""

IMAGE_TO_IMAGE = """
import torch
from diffusers import AutoPipelineForImage2Image, AutoPipelineForText2Image, EulerDiscreteScheduler
from diffusers.utils import load_image

first = AutoPipelineForText2Image.from_pretrained(MODEL, torch_dtype=torch.float32)
first.set_progress_bar_config(disable=True)
first.scheduler = EulerDiscreteScheduler.from_config(first.scheduler.config)
generator = torch.Generator("cpu").manual_seed(3)
latents = first("a lion", num_inference_steps=3, width=64, height=64, generator=generator, output_type="latent").images
second = AutoPipelineForImage2Image.from_pipe(first)
second.set_progress_bar_config(disable=True)
made = second("a lion", image=latents, strength=0.7, num_inference_steps=4, generator=generator).images
again = second(
    prompt="a tiger", image=made[0], strength=0.5, guidance_scale=8.0, num_inference_steps=4, generator=generator
).images
images = [*made, *again]
"""

INPAINT = """
import torch
from diffusers import AutoPipelineForInpainting, AutoPipelineForText2Image, DDIMScheduler
from diffusers.utils import load_image, make_image_grid

pipeline = AutoPipelineForInpainting.from_pipe(AutoPipelineForText2Image.from_pretrained(MODEL, torch_dtype=torch.float32))
pipeline.set_progress_bar_config(disable=True)
pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
blurred = pipeline.mask_processor.blur(MASK, blur_factor=4)
generator = torch.Generator("cpu").manual_seed(92)
whole = pipeline(
    prompt="a red apple", image=INIT, mask_image=blurred, width=128, height=128, num_inference_steps=3, generator=generator
).images[0]
pasted = pipeline.image_processor.apply_overlay(blurred, INIT, whole)
region = pipeline(
    "a red apple", image=INIT, mask_image=MASK, padding_mask_crop=8, strength=0.75, width=64, height=64, num_inference_steps=4,
    generator=generator,
).images[0]
images = [make_image_grid([INIT, whole, pasted, region], rows=2, cols=2)]
"""

LORAS = """
import torch
from diffusers import DDIMScheduler, DiffusionPipeline

pipeline = DiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipeline.set_progress_bar_config(disable=True)
pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
pipeline.load_lora_weights(LORA_FOLDER, weight_name=LORA_NAME, adapter_name="fast")
pipeline.load_lora_weights(LORA_FOLDER, weight_name=LORA_NAME, adapter_name="again")
assert "fast" in pipeline.get_list_adapters()["unet"]
draw = lambda: pipeline("a fox", num_inference_steps=2, width=64, height=64, generator=torch.manual_seed(4)).images
pipeline.set_adapters(["fast", "again"], adapter_weights=[0.7, 0.2])
images = draw()
pipeline.set_adapters("fast")
assert pipeline.get_active_adapters() == ["fast"]
pipeline.fuse_lora(adapter_names=["fast"], lora_scale=0.5)
images += draw()
pipeline.unfuse_lora()
pipeline.disable_lora()
images += draw()
"""

LOADING = """
from diffusers.utils import load_image, make_image_grid

picture = load_image(EDGES_FILE)
assert picture.mode == "RGB"
gray = load_image(picture, convert_method=lambda image: image.convert("L"))
assert gray.mode == "L"
images = [make_image_grid([picture, picture, picture, gray.convert("RGB")], rows=2, cols=2, resize=32)]
"""

REPRODUCIBLE = """
import torch
from diffusers import DDIMScheduler, EulerAncestralDiscreteScheduler, StableDiffusionPipeline

pipeline = StableDiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipeline.set_progress_bar_config(disable=True)
generator = torch.Generator(device="cpu").manual_seed(33)
images = []
for kind in (DDIMScheduler, EulerAncestralDiscreteScheduler):
    pipeline.scheduler = kind.from_config(pipeline.scheduler.config)
    for text in ("a rocket", ["a cat face", "a red apple"]):
        images += pipeline(
            text, num_inference_steps=3, width=64, height=64, num_images_per_prompt=2, generator=generator
        ).images
"""

CALLBACKS = """
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from diffusers.callbacks import SDCFGCutoffCallback

pipeline = StableDiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
pipeline.set_progress_bar_config(disable=True)
pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
seen = []

def draw(**arguments):
    generator = torch.Generator("cpu").manual_seed(1)
    return pipeline("a red apple", num_inference_steps=5, width=64, height=64, generator=generator, **arguments).images

def callback_dynamic_cfg(pipe, step_index, timestep, callback_kwargs):
    if step_index == int(pipeline.num_timesteps * 0.4):
        prompt_embeds = callback_kwargs["prompt_embeds"]
        prompt_embeds = prompt_embeds.chunk(2)[-1]
        pipeline._guidance_scale = 0.0
        callback_kwargs["prompt_embeds"] = prompt_embeds
    seen.append(pipe.guidance_scale)
    return callback_kwargs

def stop(pipe, step_index, timestep, callback_kwargs):
    if step_index == 2:
        pipe._interrupt = True
    return callback_kwargs

def look(pipe, step_index, timestep, callback_kwargs):
    latents = callback_kwargs["latents"]
    assert tuple(latents.shape) == (1, 4, 8, 8)
    if step_index == 1:
        callback_kwargs["latents"] = latents * 0.9
    return callback_kwargs

images = draw(callback_on_step_end=callback_dynamic_cfg, callback_on_step_end_tensor_inputs=["prompt_embeds"])
assert seen == [7.5, 7.5, 0.0, 0.0, 0.0], seen
images += draw(callback_on_step_end=stop)
images += draw(callback_on_step_end=look, callback_on_step_end_tensor_inputs=["latents"])
images += draw(callback_on_step_end=SDCFGCutoffCallback(cutoff_step_ratio=None, cutoff_step_index=1))
images += draw()
"""

SCRIPTS = {
    "quicktour": QUICKTOUR,
    "controlnet": CONTROLNET,
    "lcm-lora": LCM_LORA,
    "schedulers": SCHEDULERS,
    "batches": BATCHES,
    "image-to-image": IMAGE_TO_IMAGE,
    "inpaint": INPAINT,
    "loras": LORAS,
    "loading": LOADING,
    "reproducible": REPRODUCIBLE,
    "callbacks": CALLBACKS,
}

#: What the scripts use of PyTorch, for environments without it.
TORCH = SimpleNamespace(
    Generator=kiln.diffusers.Generator, float32="float32", manual_seed=lambda seed: kiln.diffusers.Generator().manual_seed(seed)
)


def names():
    """The names that the scripts are given."""
    values = numpy.add.outer(numpy.arange(128), numpy.arange(128)).astype(numpy.uint8)
    mask = PIL.Image.new("L", (128, 128), 0)
    mask.paste(255, (32, 40, 100, 128))
    lora = next((MODEL.parent / "emoji-lcm-lora").glob("*.safetensors"))
    return {
        "MODEL": str(MODEL),
        "CONTROL": str(MODEL.parent / "emoji-controlnet-edges"),
        "LORA_FOLDER": str(lora.parent),
        "LORA_NAME": lora.name,
        "EDGES_FILE": str(ROOT / "assets" / "control" / "house-edges.png"),
        "INIT": PIL.Image.fromarray(numpy.stack([values, values[::-1], values[:, ::-1]], axis=2)),
        "MASK": mask,
    }


def of_kiln(script, has_torch=True):
    """A script with its imports changed, without PyTorch where that is not installed."""
    changed = script.replace("from diffusers", "from kiln.diffusers")
    return changed if has_torch else changed.replace("import torch\n", "torch = TORCH\n")


def run(script):
    """Runs a script, and returns its images as arrays."""
    given = {**names(), "TORCH": TORCH}
    exec(compile(script, "script", "exec"), given)
    return [numpy.asarray(image, dtype=numpy.float32) for image in given["images"]]
