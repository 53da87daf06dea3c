"""Two models in one run over the tiny models: SDXL's refiner, and switches to another model.

Writes `tests/fixtures/refiner/`: `model_index.json` of a tiny refiner, `cases.json`, an array of the defaults of all cases
and of what each case has besides, and `results.safetensors` with `{name}` for each case, latents `(images, 4, 8, 8)` in f32.
All else of the refiner is made of `models/sdxl`: its second text encoder and tokenizer, its scheduler and autoencoder, and its
U-Net as `refiner_unet` says.

`base` and `refiner` of a case name models: `sdxl`, `refiner`, `sd1`, or `sdxl_half` and `sd1_half`, which have half of the
weights of the last convolution (`conv_out.weight`). A case without `base` is the refiner alone with the image
`inpaint/image.png`; one with `strength` begins with that image. By its `rule` a case is

- `diffusers`: the pipeline of the base with `denoising_end`, then `StableDiffusionXLImg2ImgPipeline` of the refiner with
  `denoising_start`. Generators continue from one to the other.
- `a1111`: one run of the base's sampler. Before each call of the denoiser `apply_refiner` of AUTOMATIC1111's
  `modules/sd_samplers_common.py` (v1.10) decides whether the model is changed; `launch_sampling` of that file says how many
  calls it divides by. Conditions of both models are made as diffusers makes them.
"""

import PIL.Image
import torch
from diffusers import (
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.image_processor import VaeImageProcessor

from common import (
    FIXTURES,
    MODELS,
    load_json,
    load_text,
    load_unet,
    make_sampler,
    save_json,
    save_json_rows,
    save_safetensors,
)
from pipeline import load_pipeline

SIZE = 64
FOLDER = FIXTURES / "refiner"

# Of SDXL's U-Net the refiner has the columns that read the second text encoder's channels, and one number less.
CONTEXT = 32
ADDED = 28 + 5 * 8

# The file of stabilityai/stable-diffusion-xl-refiner-1.0.
INDEX = {
    "_class_name": "StableDiffusionXLImg2ImgPipeline",
    "_diffusers_version": "0.19.0.dev0",
    "add_watermarker": None,
    "force_zeros_for_empty_prompt": False,
    "requires_aesthetics_score": True,
    "scheduler": ["diffusers", "EulerDiscreteScheduler"],
    "text_encoder": [None, None],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": [None, None],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}

DEFAULTS = {
    "rule": "diffusers",
    "base": "sdxl",
    "refiner": "refiner",
    "prompt": "a red apple",
    "negative_prompt": None,
    "seed": 42,
    "steps": 10,
    "cfg_scale": 5.0,
    "images": 1,
    "sampler": "euler",
    "schedule": "default",
    "switch": 0.8,
    "by": "steps",
    "strength": None,
    "scores": None,
}
ALONE = {"base": None, "switch": None, "strength": 0.6}
A1111 = {"rule": "a1111", "base": "sd1", "refiner": "sd1_half"}
CASES = {
    "euler": {},
    "euler_half_way": {"switch": 0.5},
    "euler_karras": {"schedule": "karras", "switch": 0.7},
    "euler_a": {"sampler": "euler_a", "images": 2, "switch": 0.5},
    "dpmpp_2m": {"sampler": "dpmpp_2m"},
    "dpmpp_2m_half_way": {"sampler": "dpmpp_2m", "switch": 0.5},
    "ddim": {"sampler": "ddim"},
    "ddim_half_way": {"sampler": "ddim", "switch": 0.5, "negative_prompt": "blurry"},
    "heun": {"sampler": "heun"},
    "heun_half_way": {"sampler": "heun", "switch": 0.5},
    "unipc": {"sampler": "unipc", "switch": 0.5},
    "pndm": {"sampler": "pndm", "switch": 0.5},
    "lms": {"sampler": "lms", "switch": 0.5},
    "scores": {"scores": [8.0, 1.5], "switch": 0.5},
    "two_bases": {"refiner": "sdxl_half", "sampler": "dpmpp_2m", "switch": 0.5},
    "from_image": {"strength": 0.7, "switch": 0.6, "steps": 20},
    "alone": ALONE,
    "alone_ddim": {**ALONE, "sampler": "ddim", "strength": 0.3},
    "alone_dpmpp_2m": {**ALONE, "sampler": "dpmpp_2m", "negative_prompt": "blurry"},
    "alone_heun": {**ALONE, "sampler": "heun"},
    "alone_euler_a": {**ALONE, "sampler": "euler_a", "images": 2},
    "alone_scores": {**ALONE, "scores": [9.0, 0.5]},
    "a1111_euler": A1111,
    "a1111_euler_a": {**A1111, "sampler": "euler_a", "images": 2, "switch": 0.55},
    "a1111_dpmpp_2m": {**A1111, "sampler": "dpmpp_2m", "schedule": "karras", "switch": 0.5},
    "a1111_heun": {**A1111, "sampler": "heun", "steps": 6, "switch": 0.5},
    "a1111_lms": {**A1111, "sampler": "lms", "switch": 0.31},
    "a1111_timesteps": {**A1111, "by": "timesteps", "schedule": "karras", "switch": 0.7},
    "a1111_sdxl": {"rule": "a1111", "base": "sdxl", "refiner": "refiner", "sampler": "dpmpp_2m", "switch": 0.5},
}


def refiner_unet():
    """The refiner's network: SDXL's without the first text encoder's channels and without the last number, halved."""
    base = load_unet(MODELS / "sdxl" / "unet")
    config = {**base.config, "cross_attention_dim": CONTEXT, "projection_class_embeddings_input_dim": ADDED}
    state = base.state_dict()
    for name, tensor in state.items():
        if name.endswith(("attn2.to_k.weight", "attn2.to_v.weight")):
            state[name] = tensor[:, -CONTEXT:]
        elif name == "add_embedding.linear_1.weight":
            state[name] = tensor[:, :ADDED]
    unet = UNet2DConditionModel.from_config(config)
    unet.load_state_dict(state)
    return halved(unet.eval())


def halved(unet):
    """The same network with half of the weights of its last convolution."""
    unet.conv_out.weight.mul_(0.5)
    return unet


def components(name):
    """The parts of a model, and the arguments of its pipeline class that are no parts."""
    kind = name.removesuffix("_half")
    if kind == "refiner":
        parts = dict(components("sdxl")[0])
        parts |= {"tokenizer": None, "text_encoder": None, "unet": refiner_unet()}
        return parts, {
            "force_zeros_for_empty_prompt": False,
            "requires_aesthetics_score": True,
            "add_watermarker": False,
        }
    parts = dict(load_pipeline(kind, load_text(kind)).components)
    if name != kind:
        parts["unet"] = halved(parts["unet"])
    if kind == "sd1":
        return parts, {"requires_safety_checker": False}
    zeros = load_json(MODELS / kind / "model_index.json")["force_zeros_for_empty_prompt"]
    return parts, {"force_zeros_for_empty_prompt": zeros, "add_watermarker": False}


def pipeline(cls, name, case):
    """A pipeline of a model with a new sampler."""
    parts, extra = components(name)
    folder = MODELS / ("sdxl" if name == "refiner" else name.removesuffix("_half"))
    config = load_json(folder / "scheduler" / "scheduler_config.json")
    pipe = cls(**parts, **extra)
    pipe.scheduler = make_sampler(config, case["sampler"], case["schedule"])
    pipe.set_progress_bar_config(disable=True)
    return pipe


def image():
    """The image to begin with, at the size of the run."""
    return VaeImageProcessor().resize(PIL.Image.open(FIXTURES / "inpaint" / "image.png").convert("RGB"), SIZE, SIZE)


def scores(case):
    """The arguments of an img2img pipeline for aesthetic scores."""
    if case["scores"] is None:
        return {}
    return {"aesthetic_score": case["scores"][0], "negative_aesthetic_score": case["scores"][1]}


def run_diffusers(case):
    """The final latents of a case by diffusers' rule."""
    common = {
        "prompt": case["prompt"],
        "negative_prompt": case["negative_prompt"],
        "num_inference_steps": case["steps"],
        "guidance_scale": case["cfg_scale"],
        "num_images_per_prompt": case["images"],
        "generator": [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])],
        "output_type": "latent",
    }
    refiner = pipeline(StableDiffusionXLImg2ImgPipeline, case["refiner"], case)
    if case["base"] is None:
        return refiner(image=image(), strength=case["strength"], **scores(case), **common).images
    switch = case["switch"]
    if case["strength"] is None:
        base = pipeline(StableDiffusionXLPipeline, case["base"], case)
        latents = base(height=SIZE, width=SIZE, denoising_end=switch, **common).images
    else:
        base = pipeline(StableDiffusionXLImg2ImgPipeline, case["base"], case)
        latents = base(image=image(), strength=case["strength"], denoising_end=switch, **common).images
    return refiner(image=latents, denoising_start=switch, **scores(case), **common).images


def denoiser(name, case):
    """A model with its conditions: a function from scaled latents and timestep to the guided prediction."""
    n = case["images"]
    if name.startswith("sd1"):
        pipe = pipeline(StableDiffusionPipeline, name, case)
        cond, uncond = pipe.encode_prompt(case["prompt"], "cpu", n, True, case["negative_prompt"])
        context, added = torch.cat([uncond, cond]), None
    else:
        cls = StableDiffusionXLImg2ImgPipeline if name == "refiner" else StableDiffusionXLPipeline
        pipe = pipeline(cls, name, case)
        cond, uncond, pooled, negative_pooled = pipe.encode_prompt(
            case["prompt"], None, "cpu", n, True, case["negative_prompt"]
        )
        size = (SIZE, SIZE)
        if name == "refiner":
            ids = [torch.tensor([[*size, 0, 0, score]] * n, dtype=torch.float32) for score in (2.5, 6.0)]
        else:
            ids = [torch.tensor([[*size, 0, 0, *size]] * n, dtype=torch.float32)] * 2
        context = torch.cat([uncond, cond])
        added = {"text_embeds": torch.cat([negative_pooled, pooled]), "time_ids": torch.cat(ids)}

    def predict(x, timestep):
        output = pipe.unet(torch.cat([x] * 2), timestep, context, added_cond_kwargs=added).sample
        uncond, cond = output.chunk(2)
        return uncond + case["cfg_scale"] * (cond - uncond)

    return predict


def apply_refiner(case, step, total_steps, sigma, sigmas):
    """Whether the model is changed before this call: `completed_ratio` and its comparison in `apply_refiner`. `sigmas` are those
    of all timesteps, as `inner_model` has them."""
    if case["by"] == "steps":
        completed_ratio = step / total_steps
    else:
        timestep = torch.argmin(torch.abs(sigmas - sigma))
        completed_ratio = (999 - timestep) / 1000
    return not completed_ratio < case["switch"]


# The options `second_order` in AUTOMATIC1111's `modules/sd_samplers_kdiffusion.py`, of the samplers used here.
SECOND_ORDER = ("heun",)


def run_a1111(case):
    """The final latents of a case by AUTOMATIC1111's rule: one sampler, whose denoiser is changed."""
    folder = MODELS / case["base"]
    scheduler = make_sampler(load_json(folder / "scheduler" / "scheduler_config.json"), case["sampler"], case["schedule"])
    scheduler.set_timesteps(case["steps"])
    generators = [torch.Generator("cpu").manual_seed(case["seed"] + i) for i in range(case["images"])]
    noise = torch.cat([torch.randn((1, 4, SIZE // 8, SIZE // 8), generator=generator) for generator in generators])
    x = noise * scheduler.init_noise_sigma
    # `launch_sampling` and `SamplerData.total_steps`.
    total_steps = case["steps"] * (2 if case["sampler"] in SECOND_ORDER else 1)
    models = [denoiser(case["base"], case), denoiser(case["refiner"], case)]
    extra = {"generator": generators} if case["sampler"] == "euler_a" else {}
    calls = [0, 0]
    sigmas = ((1 - scheduler.alphas_cumprod) / scheduler.alphas_cumprod) ** 0.5
    for step, timestep in enumerate(scheduler.timesteps):
        which = int(apply_refiner(case, step, total_steps, scheduler.sigmas[step], sigmas))
        calls[which] += 1
        output = models[which](scheduler.scale_model_input(x, timestep), timestep)
        x = scheduler.step(output, timestep, x, **extra).prev_sample
    assert min(calls) > 0, case
    return x


def main():
    """Write the refiner and the cases."""
    save_json(FOLDER / "model_index.json", INDEX)
    rows, tensors = [{"name": "", **DEFAULTS}], {}
    for name, changes in CASES.items():
        case = {"name": name, **DEFAULTS, **changes}
        tensors[name] = run_a1111(case) if case["rule"] == "a1111" else run_diffusers(case)
        rows.append({"name": name, **changes})
    save_json_rows(FOLDER / "cases.json", rows)
    save_safetensors(FOLDER / "results.safetensors", tensors)


if __name__ == "__main__":
    main()
