"""Pipelines with ControlNets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kiln.diffusers.arguments import images
from kiln.diffusers.base import Pipeline
from kiln.diffusers.controlnets import ControlNetModel, controls, networks, size_of
from kiln.diffusers.model import Model
from kiln.diffusers.pipelines import Prompt
from kiln.errors import RequestError
from kiln.image import ImageLike

#: The arguments of all of them.
_CONTROL = {
    "controlnet_conditioning_scale": 1.0,
    "guess_mode": False,
    "control_guidance_start": 0.0,
    "control_guidance_end": 1.0,
}


class _Controlled(Pipeline):
    """A pipeline whose results follow control images, and have their size."""

    #: The argument with the control images.
    _control_image = "control_image"

    def __init__(self, model: Model, scheduler: Any = None, controlnet: Any = None) -> None:
        super().__init__(model, scheduler)
        self.controlnet: list[ControlNetModel] = networks(controlnet)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], *, controlnet: Any = None, **arguments: Any) -> Any:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub. `controlnet` is one ControlNet, or a list."""
        model = Model.from_pretrained(pretrained_model_name_or_path, arguments)
        return cls(model, arguments.get("scheduler"), controlnet)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, controlnet: Any = None) -> Any:
        """Another pipeline with the model of this one, which both share, and with a ControlNet."""
        made = super().from_pipe(pipeline)
        made.controlnet = networks(getattr(pipeline, "controlnet", None) if controlnet is None else controlnet)
        return made

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        name = self._control_image
        image = values.get(name)
        if image is None:
            raise RequestError(f"`{name}` is not given, expected a control image", name)
        height, width = size_of(name, image[0] if isinstance(image, (list, tuple)) else image)
        size = {"height": values.get("height") or height, "width": values.get("width") or width}
        of_prompts = controls(self.controlnet, name, image, count, dict(values))
        return [{**size, "controls": units} for units in of_prompts]


class StableDiffusionControlNetPipeline(_Controlled):
    """Text to image with ControlNets, for Stable Diffusion 1 and 2."""

    _own = {**_CONTROL, "image": None}
    _control_image = "image"

    def __call__(
        self, prompt: Prompt = None, image: ImageLike = None, height: int | None = None, width: int | None = None, **arguments: Any
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "image": image, "height": height, "width": width}, arguments)


class StableDiffusionXLControlNetPipeline(_Controlled):
    """Text to image with ControlNets, for Stable Diffusion XL."""

    _own = {**_CONTROL, "image": None, "guidance_scale": 5.0}
    _control_image = "image"

    def __call__(
        self,
        prompt: Prompt = None,
        prompt_2: None = None,
        image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "image": image, "height": height, "width": width}, arguments)


class _ControlledFromImage(_Controlled):
    """Begins with an image."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        begins = images("image", values.get("image"), count)
        of_prompts = super()._of_prompts(values, count)
        return [{**fields, "init": begin, "strength": values["strength"]} for fields, begin in zip(of_prompts, begins, strict=True)]


class StableDiffusionControlNetImg2ImgPipeline(_ControlledFromImage):
    """Image to image with ControlNets, for Stable Diffusion 1 and 2."""

    _own = {**_CONTROL, "image": None, "control_image": None, "strength": 0.8, "controlnet_conditioning_scale": 0.8}

    def __call__(
        self, prompt: Prompt = None, image: ImageLike = None, control_image: ImageLike = None, **arguments: Any
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "image": image, "control_image": control_image}, arguments)


class StableDiffusionXLControlNetImg2ImgPipeline(_ControlledFromImage):
    """Image to image with ControlNets, for Stable Diffusion XL."""

    _own = {**StableDiffusionControlNetImg2ImgPipeline._own, "guidance_scale": 5.0}

    def __call__(
        self,
        prompt: Prompt = None,
        prompt_2: None = None,
        image: ImageLike = None,
        control_image: ImageLike = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "control_image": control_image}
        return self._call(own, arguments)


class StableDiffusionControlNetInpaintPipeline(_ControlledFromImage):
    """Inpainting with ControlNets, for Stable Diffusion 1 and 2: the white part of the mask is made again."""

    _own = {**_CONTROL, "image": None, "mask_image": None, "control_image": None, "strength": 1.0, "controlnet_conditioning_scale": 0.5}

    def __call__(
        self,
        prompt: Prompt = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        control_image: ImageLike = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        own = {"prompt": prompt, "image": image, "mask_image": mask_image, "control_image": control_image}
        return self._call(own, arguments)

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        masks = images("mask_image", values.get("mask_image"), count)
        of_prompts = super()._of_prompts(values, count)
        return [{**fields, "mask": mask, "paste_back": False} for fields, mask in zip(of_prompts, masks, strict=True)]
