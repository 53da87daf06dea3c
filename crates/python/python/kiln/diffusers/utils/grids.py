"""Several images as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kiln.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image


def make_image_grid(images: Sequence[Image], rows: int, cols: int, resize: int | None = None) -> Image:
    """Images of PIL row by row in one image; `resize` makes each a square with this side before."""
    import PIL.Image

    if len(images) != rows * cols or not images:
        raise RequestError(f"`images` has {len(images)} images, expected {rows} x {cols}", "images")
    cells = list(images) if resize is None else [image.resize((resize, resize)) for image in images]
    width, height = cells[0].size
    grid = PIL.Image.new("RGB", (cols * width, rows * height))
    for number, image in enumerate(cells):
        grid.paste(image, (number % cols * width, number // cols * height))
    return grid
