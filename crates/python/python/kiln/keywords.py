"""The keywords of an engine and of its calls, for type checkers:

    def make(engine: kiln.Engine, **options: Unpack[ImageOptions]) -> list[kiln.Image]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from kiln._options import EngineOptions, RequestOptions
from kiln.image import Array, ImageLike, StrPath

__all__ = ["EngineOptions", "ImageOptions", "PlanOptions", "RequestOptions", "SetOptions"]


class ImageOptions(RequestOptions, total=False):
    """The keywords of `txt2img` and `img2img`."""

    on_step: Callable[[int, int], object] | None
    """Called with the steps that are done and all steps. `False` stops the call."""

    on_preview: Callable[[int, int, Array], object] | None
    """Called with an image's index, the step, and a small image `(h, w, 3)`. `False` stops the call."""

    preview_every: int
    """Steps between two previews, of which there are five a second at most."""


class PlanOptions(RequestOptions, total=False):
    """The keywords of `plan` and `timesteps`."""

    init: ImageLike
    """An image to begin with."""


class SetOptions(TypedDict, total=False):
    """The keywords of `batch`."""

    format: Literal["jsonl", "csv", "text"] | None
    """The format of a job file. Default: by its name."""

    set: Mapping[str, Any] | Sequence[str] | None
    """Values for all images: `{"steps": 30}`."""

    grid: Mapping[str, Any] | Sequence[str] | None
    """Axes of a grid: `{"seed": "1..4"}`."""

    shard: str | None
    """The part of the set that is made: `"1/4"`."""

    retry: bool
    """Retries images that failed before."""

    overwrite: bool
    """Replaces existing files that are not of this set."""

    batch_size: int | Literal["auto"]
    """Images that run together."""

    deterministic: bool
    """Makes one image at a time, so that its bits do not depend on the others on a GPU."""

    contact_sheet: StrPath | None
    """A file for all images in small."""

    thumbnail: int | None
    """The longest side of an image on it, in pixels."""
