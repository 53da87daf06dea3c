"""What pipelines for Stable Diffusion XL have besides: sizes that the network takes, and aesthetic scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.diffusers.arguments import only, shown
from kiln.errors import RequestError

#: The arguments of all of them, with what asks for nothing.
SIZES: dict[str, Any] = {"crops_coords_top_left": (0, 0), "negative_crops_coords_top_left": (0, 0)}


class Sizes:
    """A pipeline with the sizes that the network takes."""

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        for name in SIZES:
            only(name, tuple(values[name]), ((0, 0),), "Kiln does not take it")
        return super()._common(values)  # type: ignore[misc]


class ImageSizes(Sizes):
    """A pipeline that begins with an image, for a refiner too."""

    #: The arguments of all of them.
    arguments = {**SIZES, "aesthetic_score": 6.0, "negative_aesthetic_score": 2.5}

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        fields = {}
        for name in ("aesthetic_score", "negative_aesthetic_score"):
            if not isinstance(values[name], (int, float)):
                raise RequestError(f"`{name}` is {shown(values[name])}, expected a number", name)
            if values[name] != self.arguments[name]:
                fields[name] = float(values[name])
        return {**super()._common(values), **fields}
