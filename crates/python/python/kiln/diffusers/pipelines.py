"""Pipelines without ControlNets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.diffusers.arguments import images
from kiln.diffusers.base import Pipeline
from kiln.image import ImageLike

Prompt = str | Sequence[str] | None


class StableDiffusionPipeline(Pipeline):
    """Text to image, for Stable Diffusion 1 and 2."""

    def __call__(self, prompt: Prompt = None, height: int | None = None, width: int | None = None, **arguments: Any) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "height": height, "width": width}, arguments)


class StableDiffusionXLPipeline(Pipeline):
    """Text to image, for Stable Diffusion XL."""

    _own = {"guidance_scale": 5.0}

    def __call__(
        self,
        prompt: Prompt = None,
        prompt_2: None = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "height": height, "width": width}, arguments)


class _FromImage(Pipeline):
    """Begins with an image. The results have its size."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        return [{"init": image, "strength": values["strength"]} for image in images("image", values.get("image"), count)]


class StableDiffusionImg2ImgPipeline(_FromImage):
    """Image to image, for Stable Diffusion 1 and 2."""

    _own = {"image": None, "strength": 0.8}

    def __call__(self, prompt: Prompt = None, image: ImageLike = None, strength: float | None = None, **arguments: Any) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "image": image, "strength": strength}, arguments)


class StableDiffusionXLImg2ImgPipeline(_FromImage):
    """Image to image, for Stable Diffusion XL."""

    _own = {"image": None, "strength": 0.3, "guidance_scale": 5.0}

    def __call__(
        self,
        prompt: Prompt = None,
        prompt_2: None = None,
        image: ImageLike = None,
        strength: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        return self._call({"prompt": prompt, "prompt_2": prompt_2, "image": image, "strength": strength}, arguments)


class _Inpaint(Pipeline):
    """The white part of the mask is made again."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        defaults = self.engine.defaults
        fields = {
            "height": values.get("height") or defaults["height"],
            "width": values.get("width") or defaults["width"],
            "strength": values["strength"],
            "paste_back": False,
        }
        masks = images("mask_image", values.get("mask_image"), count)
        begins = images("image", values.get("image"), count)
        return [{**fields, "init": begin, "mask": mask} for begin, mask in zip(begins, masks, strict=True)]


class StableDiffusionInpaintPipeline(_Inpaint):
    """Inpainting, for Stable Diffusion 1 and 2."""

    _own = {"image": None, "mask_image": None, "strength": 1.0}

    def __call__(
        self,
        prompt: Prompt = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        masked_image_latents: None = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        own = {"prompt": prompt, "image": image, "mask_image": mask_image, "masked_image_latents": masked_image_latents}
        return self._call({**own, "height": height, "width": width}, arguments)


class StableDiffusionXLInpaintPipeline(_Inpaint):
    """Inpainting, for Stable Diffusion XL."""

    _own = {"image": None, "mask_image": None, "strength": 0.9999}

    def __call__(
        self,
        prompt: Prompt = None,
        prompt_2: None = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        masked_image_latents: None = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "image": image, "mask_image": mask_image}
        return self._call({**own, "masked_image_latents": masked_image_latents, "height": height, "width": width}, arguments)
