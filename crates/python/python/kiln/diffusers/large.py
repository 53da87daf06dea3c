"""What pipelines for Stable Diffusion XL have besides: sizes that the network takes, and aesthetic scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.diffusers.arguments import only, shown
from kiln.errors import RequestError

#: The arguments of all of them, with what asks for nothing.
SIZES: dict[str, Any] = {
    "original_size": None,
    "crops_coords_top_left": (0, 0),
    "target_size": None,
    "negative_original_size": None,
    "negative_crops_coords_top_left": (0, 0),
    "negative_target_size": None,
}


def _pair(name: str, value: Any) -> tuple[int, int] | None:
    """Two numbers of pixels, of which diffusers names the vertical one first."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(one, int) for one in value):
        raise RequestError(f"`{name}` is {shown(value)}, expected two numbers of pixels, height before width", name)
    return value[0], value[1]


class Sizes:
    """A pipeline with the sizes that the network takes."""

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        pairs = {name: _pair(name, values[name]) for name in SIZES}
        fields: dict[str, Any] = {}
        for name in ("original_size", "target_size", "negative_original_size", "negative_target_size"):
            pair = pairs[name]
            if pair is not None:
                fields[name] = f"{pair[1]}x{pair[0]}"
        top, left = pairs["crops_coords_top_left"] or (0, 0)
        if (top, left) != (0, 0):
            fields["crop"] = f"{left},{top}"
        negative = self._negative_crop(fields, pairs["negative_crops_coords_top_left"] or (0, 0))
        return {**super()._common(values), **fields, **negative}  # type: ignore[misc]

    def _negative_crop(self, fields: Mapping[str, Any], crop: tuple[int, int]) -> dict[str, Any]:
        """The crop of the negative prompt. diffusers takes negative values where both negative sizes are given."""
        given = [name for name in ("negative_original_size", "negative_target_size") if name in fields]
        if len(given) == 1 or (not given and crop != (0, 0)):
            name = given[0] if given else "negative_crops_coords_top_left"
            raise RequestError(f"`{name}` is given, expected `negative_original_size` and `negative_target_size` too", name)
        return {"negative_crop": f"{crop[1]},{crop[0]}"} if given else {}


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

    def _negative_crop(self, fields: Mapping[str, Any], crop: tuple[int, int]) -> dict[str, Any]:
        """None: these pipelines of diffusers take the crop of the prompt."""
        del fields
        name = "negative_crops_coords_top_left"
        only(name, crop, ((0, 0),), "the crop of the prompt is that of the negative prompt with an input image")
        return {}
