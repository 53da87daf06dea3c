"""Masks of inpainting pipelines, and calls that make the mask's region alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.diffusers.arguments import images, shown
from kiln.diffusers.base import Pipeline
from kiln.diffusers.image_processor import Region
from kiln.diffusers.tensors import is_latents
from kiln.errors import RequestError


class Masked(Pipeline):
    """A pipeline with the arguments `image`, `mask_image` and `padding_mask_crop`."""

    def _masked(self, values: Mapping[str, Any], count: int, size: tuple[int, int]) -> list[dict[str, Any]]:
        """The fields of the image and the mask for each of `count` prompts, of results of this height and width."""
        if is_latents(values.get("image")):
            raise RequestError("`image` is latents, expected an image: inpainting has the pixels around the mask", "image")
        masks = images("mask_image", values.get("mask_image"), count)
        begins = images("image", values.get("image"), count)
        region = self._region(values, size)
        if region is not None:
            cropped = self.image_processor.cropped
            masks, begins = ([cropped(one, region, *size) for one in several] for several in (masks, begins))
        return [{"init": begin, "mask": mask, "paste_back": False} for begin, mask in zip(begins, masks, strict=True)]

    def _encoded(self, values: Mapping[str, Any], prompts: int, images: int) -> int:
        del images
        image = values.get("image")
        return prompts if isinstance(image, (list, tuple)) and len(image) == prompts else 1

    def _region(self, values: Mapping[str, Any], size: tuple[int, int]) -> Region | None:
        """The region of the mask, where it alone is made."""
        pad = values.get("padding_mask_crop")
        if pad is None:
            return None
        if not isinstance(pad, int) or pad < 0:
            raise RequestError(f"`padding_mask_crop` is {shown(pad)}, expected a number of pixels", "padding_mask_crop")
        for name in ("image", "mask_image"):
            if type(values.get(name)).__module__.split(".")[0] != "PIL":
                raise RequestError(f"`{name}` is {shown(values.get(name))}, expected an image of PIL with `padding_mask_crop`", name)
        if values["output_type"] != "pil":
            raise RequestError("`output_type` is not 'pil', which `padding_mask_crop` needs", "output_type")
        return self.mask_processor.get_crop_region(values["mask_image"], size[1], size[0], pad)

    def _finish(self, values: Mapping[str, Any], result: Any) -> Any:
        if values.get("padding_mask_crop") is None:
            return result
        width, height = result[0].size
        region = self._region(values, (height, width))
        overlay = self.image_processor.apply_overlay
        return [overlay(values["mask_image"], values["image"], one, region) for one in result]
