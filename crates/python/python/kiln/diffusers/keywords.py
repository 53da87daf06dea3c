"""The keywords of calls and of `from_pretrained`, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from kiln.image import StrPath

#: A text, or one for each image.
Texts = str | Sequence[str] | None
#: A number, or one for each network.
Numbers = float | Sequence[float]


class PretrainedArguments(TypedDict, total=False):
    """The keywords of `from_pretrained`."""

    torch_dtype: Any
    """The type of weights and activations: float32, float16 or bfloat16 of PyTorch, or their names."""
    dtype: Any
    """As `torch_dtype`."""
    device_map: Literal["cpu", "cuda"] | None
    """The device."""
    revision: str | None
    """A branch, a tag or a commit on the Hugging Face Hub."""
    local_files_only: bool
    """Uses files of the cache alone."""
    variant: Literal["fp16"] | None
    """Accepted: Kiln chooses the files by the type."""
    use_safetensors: bool | None
    """Accepted where it is not False."""
    safety_checker: None
    """None: Kiln has no filter of contents."""
    requires_safety_checker: bool
    """Accepted."""
    feature_extractor: None
    """None."""
    scheduler: Any
    """A scheduler of kiln.diffusers."""
    vae: Any
    """An `AutoencoderKL` or `AutoencoderTiny` of kiln.diffusers."""
    unet: Any
    """A `UNet2DConditionModel` of kiln.diffusers."""
    transformer: Any
    """An `SD3Transformer2DModel` or `FluxTransformer2DModel` of kiln.diffusers."""
    text_encoder_3: None
    """None: Stable Diffusion 3 runs without T5."""
    tokenizer_3: None
    """None."""
    config: StrPath | None
    """For a model in one file: a folder with configurations and tokenizers."""
    cache_dir: None
    """None."""
    token: Literal[False] | None
    """None: a token is read from the environment variable HF_TOKEN."""
    low_cpu_mem_usage: bool
    """Accepted."""
    force_download: Literal[False]
    """False."""
    image_encoder: None
    """None."""
    add_watermarker: Literal[False] | None
    """False: Kiln has no invisible watermark."""
    custom_pipeline: None
    """None."""


class CallArguments(TypedDict, total=False):
    """The keywords of every call."""

    negative_prompt: Texts
    """What the images do not show: one text, or one for each prompt."""
    num_inference_steps: int
    """Number of steps."""
    guidance_scale: float
    """Strength of classifier-free guidance; 1 and less turn it off."""
    guidance_rescale: float
    """How far the deviation of the guided prediction is restored."""
    num_images_per_prompt: int
    """Images of each prompt."""
    eta: float
    """Fraction of new noise in each step, with DDIM and TCD."""
    generator: Any
    """A generator, or one for each image: of PyTorch, or `Generator` of kiln.diffusers."""
    ip_adapter_image: Any
    """Images for the IP-Adapters, one for each."""
    output_type: Literal["pil", "np", "pt", "latent"]
    """The kind of the result."""
    return_dict: bool
    """False returns a plain tuple."""
    cross_attention_kwargs: Mapping[str, Any] | None
    """`{"scale": ..}`, the strength of all LoRAs that are not fused."""
    clip_skip: int | None
    """Layers of the text encoder that are left out at its end."""
    callback_on_step_end: Callable[..., Mapping[str, Any] | None] | None
    """Called after every step with the pipeline, the step, its timestep and a dict of tensors."""
    callback_on_step_end_tensor_inputs: Sequence[str]
    """The names of these tensors: latents, prompt_embeds and others."""


class TextToImageArguments(CallArguments, total=False):
    """The keywords of pipelines that begin with noise."""

    latents: Any
    """The noise that the images begin with, `(n, c, h, w)`."""


class SizeArguments(TypedDict, total=False):
    """The keywords of pipelines for Stable Diffusion XL."""

    original_size: tuple[int, int] | None
    """Height and width of the image before the training made it smaller and cut it."""
    crops_coords_top_left: tuple[int, int]
    """Where the training cut it: pixels above, and to the left."""
    target_size: tuple[int, int] | None
    """Height and width of the result."""
    negative_original_size: tuple[int, int] | None
    """The value of `original_size` for the negative prompt."""
    negative_crops_coords_top_left: tuple[int, int]
    """The value of `crops_coords_top_left` for the negative prompt."""
    negative_target_size: tuple[int, int] | None
    """The value of `target_size` for the negative prompt."""


class ImageSizeArguments(SizeArguments, total=False):
    """The keywords of pipelines for Stable Diffusion XL that begin with an image."""

    aesthetic_score: float
    """The aesthetic score that a refiner takes with the prompt."""
    negative_aesthetic_score: float
    """The aesthetic score that a refiner takes with the negative prompt."""


class LargeTextToImageArguments(TextToImageArguments, SizeArguments, total=False):
    """The keywords of `StableDiffusionXLPipeline`."""


class LargeImageArguments(CallArguments, ImageSizeArguments, total=False):
    """The keywords of `StableDiffusionXLImg2ImgPipeline`."""


class PagArguments(TextToImageArguments, total=False):
    """The keywords of pipelines with perturbed attention guidance."""

    pag_scale: float
    """Strength of perturbed attention guidance; 0 turns it off."""
    pag_adaptive_scale: float
    """How much that strength falls with each timestep."""


class LargePagArguments(PagArguments, SizeArguments, total=False):
    """The keywords of `StableDiffusionXLPAGPipeline`."""


class LargeInpaintArguments(CallArguments, ImageSizeArguments, total=False):
    """The keywords of pipelines with a mask."""

    strength: float
    """Fraction of the steps that is run on the image."""
    padding_mask_crop: int | None
    """Makes the mask's region alone, with so many pixels around it, and puts it back into the image."""


class FlowArguments(TypedDict, total=False):
    """The keywords of every call of pipelines for flow models."""

    num_inference_steps: int
    """Number of steps."""
    guidance_scale: float
    """Strength of guidance: for Stable Diffusion 3 classifier-free guidance, for FLUX.1 an input of the transformer."""
    num_images_per_prompt: int
    """Images of each prompt."""
    generator: Any
    """A generator, or one for each image: of PyTorch, or `Generator` of kiln.diffusers."""
    output_type: Literal["pil", "np", "pt", "latent"]
    """The kind of the result."""
    return_dict: bool
    """False returns a plain tuple."""
    joint_attention_kwargs: Mapping[str, Any] | None
    """`{"scale": ..}`, the strength of all LoRAs that are not fused."""
    callback_on_step_end: Callable[..., Mapping[str, Any] | None] | None
    """Called after every step with the pipeline, the step, its timestep and a dict of tensors."""
    callback_on_step_end_tensor_inputs: Sequence[str]
    """The names of these tensors: latents, prompt_embeds and others."""
    max_sequence_length: int
    """Tokens of T5: shorter texts are padded, longer ones cut off."""


class Sd3Arguments(FlowArguments, total=False):
    """The keywords of every call of pipelines for Stable Diffusion 3."""

    negative_prompt: Texts
    """What the images do not show: one text, or one for each prompt."""
    negative_prompt_2: Texts
    """None, or the text of `negative_prompt`."""
    negative_prompt_3: Texts
    """None, or the text of `negative_prompt`."""
    clip_skip: int | None
    """Layers of CLIP's encoders that are left out at their end; without guidance alone."""


class Sd3TextToImageArguments(Sd3Arguments, total=False):
    """The keywords of `StableDiffusion3Pipeline`."""

    latents: Any
    """The noise that the images begin with, `(n, c, h, w)`."""
    skip_guidance_layers: Sequence[int] | None
    """Skip-layer guidance: the numbers of the blocks that are left out."""
    skip_layer_guidance_scale: float
    """Its strength."""
    skip_layer_guidance_stop: float
    """The part of the steps at which it ends."""
    skip_layer_guidance_start: float
    """The part of the steps after which it begins."""


class Sd3ImageArguments(Sd3Arguments, total=False):
    """The keywords of `StableDiffusion3Img2ImgPipeline`."""

    strength: float
    """Fraction of the steps that is run on the image."""


class Sd3InpaintArguments(Sd3ImageArguments, total=False):
    """The keywords of `StableDiffusion3InpaintPipeline`."""

    height: int | None
    """Height in pixels."""
    width: int | None
    """Width in pixels."""
    padding_mask_crop: int | None
    """Makes the mask's region alone, with so many pixels around it, and puts it back into the image."""


class FluxArguments(FlowArguments, total=False):
    """The keywords of `FluxPipeline`."""

    latents: Any
    """The noise that the images begin with, packed: `(n, h/2*w/2, 4*c)`."""


class FluxImageArguments(FlowArguments, total=False):
    """The keywords of `FluxImg2ImgPipeline`."""

    height: int | None
    """Height in pixels."""
    width: int | None
    """Width in pixels."""
    strength: float
    """Fraction of the steps that is run on the image."""


class FluxInpaintArguments(FluxImageArguments, total=False):
    """The keywords of `FluxInpaintPipeline`."""

    masked_image_latents: None
    """None."""
    padding_mask_crop: int | None
    """Makes the mask's region alone, with so many pixels around it, and puts it back into the image."""


class ControlArguments(CallArguments, total=False):
    """The keywords of pipelines with ControlNets."""

    controlnet_conditioning_scale: Numbers
    """Strengths of the ControlNets."""
    control_guidance_start: Numbers
    """The part of the steps before which a ControlNet does not act."""
    control_guidance_end: Numbers
    """The part of the steps after which a ControlNet does not act."""
    guess_mode: bool
    """Has ControlNets act on the conditional half alone, less in the outer layers."""


class ControlTextToImageArguments(ControlArguments, total=False):
    """The keywords of pipelines with ControlNets that begin with noise."""

    latents: Any
    """The noise that the images begin with, `(n, c, h, w)`."""


class LargeControlArguments(ControlTextToImageArguments, SizeArguments, total=False):
    """The keywords of `StableDiffusionXLControlNetPipeline`."""


class ControlImageArguments(ControlArguments, total=False):
    """The keywords of pipelines with ControlNets that begin with an image."""

    strength: float
    """Fraction of the steps that is run on the image."""


class ControlInpaintArguments(ControlImageArguments, total=False):
    """The keywords of pipelines with ControlNets and a mask."""

    height: int | None
    """Height in pixels."""
    width: int | None
    """Width in pixels."""
    padding_mask_crop: int | None
    """Makes the mask's region alone, with so many pixels around it, and puts it back into the image."""


class LargeControlImageArguments(ControlImageArguments, ImageSizeArguments, total=False):
    """The keywords of `StableDiffusionXLControlNetImg2ImgPipeline`."""


class LargeControlInpaintArguments(ControlInpaintArguments, ImageSizeArguments, total=False):
    """The keywords of `StableDiffusionXLControlNetInpaintPipeline`."""


class UnionArguments(ControlArguments, ImageSizeArguments, total=False):
    """The keywords of pipelines with a ControlNet for several types of control images."""

    control_mode: int | Sequence[int]
    """The types of the control images, as numbers of the network."""
    strength: float
    """Fraction of the steps that is run on the image, where there is one."""


class AdapterArguments(CallArguments, SizeArguments, total=False):
    """The keywords of pipelines with T2I-Adapters."""

    adapter_conditioning_scale: Numbers
    """Strengths of the adapters."""
    adapter_conditioning_factor: float
    """The part of the steps in which they act, for Stable Diffusion XL."""
    latents: Any
    """The noise that the images begin with, `(n, c, h, w)`."""

