"""Pipelines with ControlNets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from kiln.diffusers.base import Pipeline
from kiln.diffusers.controlnets import ControlNetModel, controls, networks, size_of
from kiln.diffusers.keywords import (
    ControlImageArguments,
    ControlInpaintArguments,
    ControlTextToImageArguments,
    LargeControlArguments,
    LargeControlImageArguments,
    LargeControlInpaintArguments,
    PretrainedArguments,
    Texts,
)
from kiln.diffusers.large import SIZES, ImageSizes, Sizes
from kiln.diffusers.masks import Masked
from kiln.diffusers.model import Model
from kiln.diffusers.outputs import StableDiffusionPipelineOutput, StableDiffusionXLPipelineOutput
from kiln.diffusers.pipelines import FromImage, begins
from kiln.errors import RequestError
from kiln.image import ImageLike, StrPath

#: The arguments of all of them.
CONTROL = {
    "controlnet_conditioning_scale": 1.0,
    "guess_mode": False,
    "control_guidance_start": 0.0,
    "control_guidance_end": 1.0,
}


class Controlled(Pipeline):
    """A pipeline whose results follow control images, and have their size."""

    #: The argument with the control images.
    _control_image = "control_image"
    #: The class of its networks.
    _networks: type[ControlNetModel] = ControlNetModel

    def __init__(self, model: Model, scheduler: Any = None, controlnet: Any = None) -> None:
        super().__init__(model, scheduler)
        self.controlnet = controlnet

    @property
    def controlnet(self) -> Any:
        """The ControlNet, or a list of several."""
        nets = self.__dict__["controlnet"]
        return nets[0] if len(nets) == 1 else list(nets)

    @controlnet.setter
    def controlnet(self, controlnet: Any) -> None:
        self._change("controlnet")
        self.__dict__["controlnet"] = networks(controlnet, self._model, self._networks)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: StrPath, *, controlnet: Any = None, **arguments: Unpack[PretrainedArguments]
    ) -> Self:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub. `controlnet` is one ControlNet, or a list."""
        model = Model.from_pretrained(pretrained_model_name_or_path, arguments)
        return cls(model, arguments.get("scheduler"), controlnet)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, controlnet: Any = None, **arguments: Any) -> Self:
        """Another pipeline with the model of this one, which both share, and with a ControlNet."""
        made = super().from_pipe(pipeline, **arguments)
        made.controlnet = pipeline.__dict__.get("controlnet") if controlnet is None else controlnet
        return made

    def _size(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """The height and width of the results."""
        name = self._control_image
        image = values.get(name)
        if image is None:
            raise RequestError(f"`{name}` is not given, expected a control image", name)
        if values.get("height") and values.get("width"):
            return values["height"], values["width"]
        height, width = size_of(name, image[0] if isinstance(image, (list, tuple)) and image else image)
        return values.get("height") or height, values.get("width") or width

    def _controls(self, values: Mapping[str, Any], count: int) -> list[list[dict[str, Any]]]:
        """The controls of each of `count` prompts."""
        return controls(self.__dict__["controlnet"], self._control_image, values[self._control_image], count, values)

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        height, width = self._size(values)
        return [{"height": height, "width": width, "controls": units} for units in self._controls(values, count)]


class ControlledFromImage(Controlled):
    """Begins with an image."""

    _encoded = FromImage._encoded

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        of_prompts = super()._of_prompts(values, count)
        inits = begins(values, count)
        return [{**fields, "init": init, "strength": values["strength"]} for fields, init in zip(of_prompts, inits, strict=True)]


class ControlledInpaint(Masked, Controlled):
    """Makes the white part of a mask again."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        size = self._size(values)
        region = self._region(values, size)
        if region is not None:
            name = self._control_image
            several = values[name] if isinstance(values[name], (list, tuple)) else [values[name]]
            cropped = [self.image_processor.cropped(one, region, *size) for one in several]
            values = {**values, name: cropped if isinstance(values[name], (list, tuple)) else cropped[0]}
        fields = {"height": size[0], "width": size[1], "strength": values["strength"]}
        units = self._controls(values, count)
        return [{**fields, **one, "controls": of} for one, of in zip(self._masked(values, count, size), units, strict=True)]


class StableDiffusionControlNetPipeline(Controlled):
    """Text to image with ControlNets, for Stable Diffusion 1 and 2."""

    _own = {**CONTROL, "image": None, "latents": None}
    _control_image = "image"

    def __call__(
        self,
        prompt: Texts = None,
        image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[ControlTextToImageArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes images that follow a control image."""
        return self._call({"prompt": prompt, "image": image, "height": height, "width": width}, arguments)


class StableDiffusionXLControlNetPipeline(Sizes, Controlled):
    """Text to image with ControlNets, for Stable Diffusion XL."""

    _own = {**CONTROL, "image": None, "latents": None, "guidance_scale": 5.0, **SIZES}
    _control_image = "image"
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[LargeControlArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images that follow a control image."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "image": image, "height": height, "width": width}, arguments)


class StableDiffusionControlNetImg2ImgPipeline(ControlledFromImage):
    """Image to image with ControlNets, for Stable Diffusion 1 and 2."""

    _own = {**CONTROL, "image": None, "control_image": None, "strength": 0.8, "controlnet_conditioning_scale": 0.8}

    def __call__(
        self,
        prompt: Texts = None,
        image: ImageLike = None,
        control_image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[ControlImageArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes images of an image that follow a control image."""
        own = {"prompt": prompt, "image": image, "control_image": control_image}
        return self._call({**own, "height": height, "width": width}, arguments)


class StableDiffusionXLControlNetImg2ImgPipeline(ImageSizes, ControlledFromImage):
    """Image to image with ControlNets, for Stable Diffusion XL."""

    _own = {**StableDiffusionControlNetImg2ImgPipeline._own, "guidance_scale": 5.0, **ImageSizes.arguments}
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        control_image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[LargeControlImageArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes images of an image that follow a control image."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "control_image": control_image}
        return self._call({**own, "height": height, "width": width}, arguments)


class StableDiffusionControlNetInpaintPipeline(ControlledInpaint):
    """Inpainting with ControlNets, for Stable Diffusion 1 and 2."""

    _own = {
        **CONTROL,
        "image": None,
        "mask_image": None,
        "control_image": None,
        "strength": 1.0,
        "controlnet_conditioning_scale": 0.5,
        "padding_mask_crop": None,
    }

    def __call__(
        self,
        prompt: Texts = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        control_image: ImageLike = None,
        **arguments: Unpack[ControlInpaintArguments],
    ) -> StableDiffusionPipelineOutput:
        """Makes the white part of a mask again, which follows a control image."""
        own = {"prompt": prompt, "image": image, "mask_image": mask_image, "control_image": control_image}
        return self._call(own, arguments)


class StableDiffusionXLControlNetInpaintPipeline(ImageSizes, ControlledInpaint):
    """Inpainting with ControlNets, for Stable Diffusion XL."""

    _own = {
        **StableDiffusionControlNetInpaintPipeline._own,
        "strength": 0.9999,
        "controlnet_conditioning_scale": 1.0,
        "guidance_scale": 5.0,
        **ImageSizes.arguments,
    }
    _is_large = True

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        control_image: ImageLike = None,
        **arguments: Unpack[LargeControlInpaintArguments],
    ) -> StableDiffusionXLPipelineOutput:
        """Makes the white part of a mask again, which follows a control image."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "mask_image": mask_image}
        return self._call({**own, "control_image": control_image}, arguments)
