"""Files of several images."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kiln.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image


def export_to_gif(image: Sequence[Image], output_gif_path: str | os.PathLike[str] | None = None, fps: int = 10) -> str:
    """Writes images of PIL as an animated GIF, by default into a new temporary file, and returns its path."""
    if not image or fps <= 0:
        raise RequestError(f"`image` has {len(image)} images at {fps} frames a second, expected one and 1 at least", "image")
    if output_gif_path is None:
        handle, path = tempfile.mkstemp(suffix=".gif")
        os.close(handle)
    else:
        path = os.fspath(output_gif_path)
    first, *others = image
    first.save(path, save_all=True, append_images=others, optimize=False, duration=1000 // fps, loop=0)
    return path
