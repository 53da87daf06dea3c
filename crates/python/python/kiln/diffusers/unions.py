"""Pipelines with a ControlNet for several types of control images, and pipelines with T2I-Adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from kiln.diffusers.arguments import numbers, shown
from kiln.diffusers.base import Pipeline
from kiln.diffusers.controlled import CONTROL, Controlled, ControlledFromImage, ControlledInpaint
from kiln.diffusers.controlnets import ControlNetUnionModel, adapters, controls
from kiln.diffusers.keywords import AdapterArguments, PretrainedArguments, Texts, UnionArguments
from kiln.diffusers.large import SIZES, ImageSizes, Sizes
from kiln.diffusers.model import Model
from kiln.diffusers.outputs import StableDiffusionPipelineOutput, StableDiffusionXLPipelineOutput
from kiln.errors import RequestError
from kiln.image import ImageLike, StrPath

#: The types of control images in the order of the numbers that the networks know them by.
TYPES = ("openpose", "depth", "softedge", "canny", "normal", "segment", "tile", "inpaint")


class _Union(Controlled):
    """A network that knows several types of control images."""

    _networks = ControlNetUnionModel

    def _controls(self, values: Mapping[str, Any], count: int) -> list[list[dict[str, Any]]]:
        asked, image = values.get("control_mode"), values["control_image"]
        modes: list[Any] = list(asked) if isinstance(asked, (list, tuple)) else [asked]
        for mode in modes:
            if not isinstance(mode, int) or not 0 <= mode < len(TYPES):
                expected = f"a number from 0 to {len(TYPES) - 1} for each control image"
                raise RequestError(f"`control_mode` is {shown(mode)}, expected {expected}", "control_mode")
        nets = self.__dict__["controlnet"]
        if len(nets) != 1:
            raise RequestError(f"`controlnet` has {len(nets)} networks, expected one ControlNetUnionModel", "controlnet")
        several = list(image) if isinstance(image, (list, tuple)) else [image]
        if len(several) != len(modes):
            raise RequestError(f"`control_image` has {len(several)} images, expected {len(modes)}, one for each mode", "control_image")
        images = several if len(modes) > 1 else several[0]
        units = controls(nets * len(modes), "control_image", images, count, values)
        return [[{**unit, "type": TYPES[mode]} for unit, mode in zip(of, modes, strict=True)] for of in units]


class StableDiffusionXLControlNetUnionPipeline(Sizes, _Union):
    """Text to image with a ControlNet for several types of control images, for Stable Diffusion XL."""

    _own = {**CONTROL, "control_image": None, "control_mode": None, "latents": None, "guidance_scale": 5.0, **SIZES}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        control_image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[UnionArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images that follow control images of the types `control_mode`."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "control_image": control_image}
        return self._call({**own, "height": height, "width": width}, arguments)


class StableDiffusionXLControlNetUnionImg2ImgPipeline(ImageSizes, _Union, ControlledFromImage):
    """Image to image with a ControlNet for several types of control images, for Stable Diffusion XL."""

    _own = {
        **CONTROL,
        "image": None,
        "control_image": None,
        "control_mode": None,
        "strength": 0.8,
        "controlnet_conditioning_scale": 0.8,
        "guidance_scale": 5.0,
        **ImageSizes.arguments,
    }
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        control_image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[UnionArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images of an image that follow control images of the types `control_mode`."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "control_image": control_image}
        return self._call({**own, "height": height, "width": width}, arguments)


class StableDiffusionXLControlNetUnionInpaintPipeline(ImageSizes, _Union, ControlledInpaint):
    """Inpainting with a ControlNet for several types of control images, for Stable Diffusion XL."""

    _own = {
        **StableDiffusionXLControlNetUnionImg2ImgPipeline._own,
        "mask_image": None,
        "padding_mask_crop": None,
        "strength": 0.9999,
        "controlnet_conditioning_scale": 1.0,
    }
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        control_image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        padding_mask_crop: int | None = None,
        **arguments: Unpack[UnionArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes the white part of a mask again, which follows control images of the types `control_mode`."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "mask_image": mask_image}
        others = {"control_image": control_image, "height": height, "width": width, "padding_mask_crop": padding_mask_crop}
        return self._call({**own, **others}, arguments)


class _Adapted(Pipeline):
    """A pipeline with T2I-Adapters."""

    def __init__(self, model: Model, scheduler: Any = None, adapter: Any = None) -> None:
        super().__init__(model, scheduler)
        self.adapter = adapter

    @property
    def adapter(self) -> Any:
        """The T2I-Adapters."""
        return self.__dict__["adapter"]

    @adapter.setter
    def adapter(self, adapter: Any) -> None:
        self._change("adapter")
        self.__dict__["adapter"] = adapters(adapter, self._model)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: StrPath, *, adapter: Any = None, **arguments: Unpack[PretrainedArguments]
    ) -> Self:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub. `adapter` is one T2I-Adapter, or several."""
        return cls(Model.from_pretrained(pretrained_model_name_or_path, arguments), arguments.get("scheduler"), adapter)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, adapter: Any = None, **arguments: Any) -> Self:
        """Another pipeline with the model of this one, which both share, and with a T2I-Adapter."""
        made = super().from_pipe(pipeline, **arguments)
        made.adapter = pipeline.__dict__.get("adapter") if adapter is None else adapter
        return made

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        several, image = self.adapter, values.get("image")
        if image is None:
            raise RequestError("`image` is not given, expected a control image", "image")
        arguments = {
            "controlnet_conditioning_scale": numbers(
                "adapter_conditioning_scale", values["adapter_conditioning_scale"], len(several), "adapter"
            ),
            "control_guidance_start": 0.0,
            "control_guidance_end": numbers(
                "adapter_conditioning_factor", values.get("adapter_conditioning_factor", 1.0), 1, "call"
            )[0],
            "guess_mode": False,
        }
        size = {"height": values.get("height"), "width": values.get("width")}
        return [{**size, "controls": units} for units in controls(several, "image", image, count, arguments)]


class StableDiffusionAdapterPipeline(_Adapted):
    """Text to image with T2I-Adapters, for Stable Diffusion 1 and 2."""

    _own = {"image": None, "latents": None, "adapter_conditioning_scale": 1.0}

    def __call__(
        self,
        prompt: Texts = None,
        image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[AdapterArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes images that follow a control image."""
        return self._call({"prompt": prompt, "image": image, "height": height, "width": width}, arguments)


class StableDiffusionXLAdapterPipeline(Sizes, _Adapted):
    """Text to image with T2I-Adapters, for Stable Diffusion XL."""

    _own = {**StableDiffusionAdapterPipeline._own, "adapter_conditioning_factor": 1.0, "guidance_scale": 5.0, **SIZES}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[AdapterArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images that follow a control image."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "image": image, "height": height, "width": width}, arguments)
