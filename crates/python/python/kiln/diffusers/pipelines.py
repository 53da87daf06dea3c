"""Pipelines without ControlNets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from kiln.diffusers.arguments import images, numbers
from kiln.diffusers.base import Pipeline
from kiln.diffusers.keywords import (
    CallArguments,
    LargeImageArguments,
    LargeInpaintArguments,
    LargePagArguments,
    LargeTextToImageArguments,
    PagArguments,
    PretrainedArguments,
    TextToImageArguments,
    Texts,
)
from kiln.diffusers.large import SIZES, ImageSizes, Sizes
from kiln.diffusers.masks import Masked
from kiln.diffusers.outputs import StableDiffusionPipelineOutput, StableDiffusionXLPipelineOutput
from kiln.diffusers.tensors import is_latents
from kiln.errors import RequestError
from kiln.image import ImageLike, StrPath


class StableDiffusionPipeline(Pipeline):
    """Text to image, for Stable Diffusion 1 and 2."""

    _own = {"latents": None}

    def __call__(
        self,
        prompt: Texts = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[TextToImageArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes images of a prompt."""
        return self._call({"prompt": prompt, "height": height, "width": width}, arguments)


class StableDiffusionXLPipeline(Sizes, Pipeline):
    """Text to image, for Stable Diffusion XL."""

    _own = {"latents": None, "guidance_scale": 5.0, **SIZES}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[LargeTextToImageArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images of a prompt."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "height": height, "width": width}, arguments)


class FromImage(Pipeline):
    """Begins with an image. The results have its size."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        return [{"init": one, "strength": values["strength"]} for one in begins(values, count)]

    def _encoded(self, values: Mapping[str, Any], prompts: int, images: int) -> int:
        return images if isinstance(values.get("generator"), (list, tuple)) else given(values, prompts)


def given(values: Mapping[str, Any], prompts: int) -> int:
    """The number of input images that were given, 1 or one for each prompt."""
    image = values.get("image")
    return prompts if isinstance(image, (list, tuple)) and len(image) == prompts else 1


def begins(values: Mapping[str, Any], count: int) -> list[Any]:
    """The images that calls of `count` prompts begin with. Latents have a black image of their size, which is not encoded."""
    image: Any = values.get("image")
    if is_latents(image):
        import numpy

        height, width = 8 * image.shape[2], 8 * image.shape[3]
        return [numpy.zeros((height, width, 3), numpy.uint8)] * count
    return images("image", image, count)


class StableDiffusionImg2ImgPipeline(FromImage):
    """Image to image, for Stable Diffusion 1 and 2."""

    _own = {"image": None, "strength": 0.8}

    def __call__(
        self,
        prompt: Texts = None,
        image: ImageLike = None,
        strength: float | None = None,
        **arguments: Unpack[CallArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes images of a prompt and an image, or the latents of one."""
        return self._call({"prompt": prompt, "image": image, "strength": strength}, arguments)


class StableDiffusionXLImg2ImgPipeline(ImageSizes, FromImage):
    """Image to image, for Stable Diffusion XL."""

    _own = {"image": None, "strength": 0.3, "guidance_scale": 5.0, **ImageSizes.arguments}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        strength: float | None = None,
        **arguments: Unpack[LargeImageArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images of a prompt and an image, or the latents of one."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "image": image, "strength": strength}, arguments)


class _Inpaint(Masked):
    """The white part of the mask is made again."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        defaults = self.engine.defaults
        size = values.get("height") or defaults["height"], values.get("width") or defaults["width"]
        fields = {"height": size[0], "width": size[1], "strength": values["strength"]}
        return [{**fields, **masked} for masked in self._masked(values, count, size)]


class StableDiffusionInpaintPipeline(_Inpaint):
    """Inpainting, for Stable Diffusion 1 and 2."""

    _own = {"image": None, "mask_image": None, "strength": 1.0, "padding_mask_crop": None}

    def __call__(
        self,
        prompt: Texts = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        masked_image_latents: None = None,
        height: int | None = None,
        width: int | None = None,
        padding_mask_crop: int | None = None,
        strength: float | None = None,
        **arguments: Unpack[CallArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes the white part of a mask again."""
        own = {"prompt": prompt, "image": image, "mask_image": mask_image, "masked_image_latents": masked_image_latents}
        others = {"height": height, "width": width, "padding_mask_crop": padding_mask_crop, "strength": strength}
        return self._call({**own, **others}, arguments)


class StableDiffusionXLInpaintPipeline(ImageSizes, _Inpaint):
    """Inpainting, for Stable Diffusion XL."""

    _own = {**StableDiffusionInpaintPipeline._own, "strength": 0.9999, **ImageSizes.arguments}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        masked_image_latents: None = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[LargeInpaintArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes the white part of a mask again."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "mask_image": mask_image}
        return self._call({**own, "masked_image_latents": masked_image_latents, "height": height, "width": width}, arguments)


class _Pag(Pipeline):
    """Perturbed attention guidance: away from what the network predicts without attention in some layers."""

    _pag_layers: str

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._keep(_pag_layers="mid")

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: StrPath, *, pag_applied_layers: Any = "mid", **arguments: Unpack[PretrainedArguments]
    ) -> Self:
        """Opens a model. `pag_applied_layers` are begins of the layers' names, such as mid or up_blocks.1."""
        made = super().from_pretrained(pretrained_model_name_or_path, **arguments)
        made.set_pag_applied_layers(pag_applied_layers)
        return made

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, pag_applied_layers: Any = None, **arguments: Any) -> Self:
        """Another pipeline with the model of this one, which both share."""
        made = super().from_pipe(pipeline, **arguments)
        made.set_pag_applied_layers(pag_applied_layers or made.__dict__.get("_pag_layers", "mid").split(","))
        return made

    def set_pag_applied_layers(self, pag_applied_layers: Any) -> None:
        """Sets the layers, as begins of their names: mid, down_blocks.1, up_blocks.1.attentions.0."""
        self._change("set_pag_applied_layers")
        layers = [pag_applied_layers] if isinstance(pag_applied_layers, str) else list(pag_applied_layers)
        for layer in layers:
            name = layer.removesuffix("_block")
            parts = name.split(".")
            is_block = parts[0] in ("down_blocks", "up_blocks") and len(parts) in (2, 4) and parts[1].isdigit()
            if name != "mid" and not (is_block and parts[2:3] in ([], ["attentions"])):
                expected = "mid, or down_blocks.N and up_blocks.N, with .attentions.N or without"
                raise RequestError(f"`pag_applied_layers` has {layer!r}, expected {expected}", "pag_applied_layers")
        self._keep(_pag_layers=",".join(layer.removesuffix("_block") for layer in layers))

    def _of_perturbation(self, values: Mapping[str, Any]) -> dict[str, Any]:
        scale, adaptive = (numbers(name, values[name], 1, "call")[0] for name in ("pag_scale", "pag_adaptive_scale"))
        return {"pag_scale": scale, "pag_adaptive_scale": adaptive or None, "pag_layers": self._pag_layers} if scale else {}


class StableDiffusionPAGPipeline(_Pag):
    """Text to image with perturbed attention guidance, for Stable Diffusion 1 and 2."""

    _own = {"latents": None, "pag_scale": 3.0, "pag_adaptive_scale": 0.0}

    def __call__(
        self, prompt: Texts = None, height: int | None = None, width: int | None = None, **arguments: Unpack[PagArguments]
    ) -> StableDiffusionPipelineOutput:
        """Makes images of a prompt."""
        return self._call({"prompt": prompt, "height": height, "width": width}, arguments)


class StableDiffusionXLPAGPipeline(Sizes, _Pag):
    """Text to image with perturbed attention guidance, for Stable Diffusion XL."""

    _own = {**StableDiffusionPAGPipeline._own, "guidance_scale": 5.0, **SIZES}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[LargePagArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images of a prompt."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "height": height, "width": width}, arguments)
