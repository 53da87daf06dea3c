"""Images from files and addresses."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln.diffusers.arguments import shown
from kiln.errors import FileError, RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

#: The largest file that is downloaded, in bytes.
MAX_BYTES = 64 * 2**20
#: Seconds without an answer after which a download fails.
TIMEOUT = 30


def load_image(image: Any, convert_method: Callable[[Image], Image] | None = None) -> Image:
    """An image of PIL in RGB, or as `convert_method` makes it: from a path, an address of http or https, or an image of PIL.

    An address is downloaded, unless the environment variable HF_HUB_OFFLINE is set.
    """
    import PIL.Image
    import PIL.ImageOps

    if isinstance(image, PIL.Image.Image):
        found = image
    elif isinstance(image, str) and image.startswith(("http://", "https://")):
        found = PIL.Image.open(io.BytesIO(_downloaded(image)))
    elif isinstance(image, (str, os.PathLike)):
        try:
            found = PIL.Image.open(image)
        except OSError as error:
            raise FileError(f"{os.fspath(image)}: {error}; expected an image, or an address that begins with http") from error
    else:
        raise RequestError(f"`image` is {shown(image)}, expected a path, an address, or an image of PIL", "image")
    found = PIL.ImageOps.exif_transpose(found)
    return found.convert("RGB") if convert_method is None else convert_method(found)


def _downloaded(address: str) -> bytes:
    """The file at an address of http or https."""
    import urllib.error
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise FileError(f"{address}: not downloaded, since HF_HUB_OFFLINE is set; give a file")
    request = urllib.request.Request(address, headers={"User-Agent": "kiln"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            data = answer.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise FileError(f"{address}: {error}; the image was not downloaded") from error
    if len(data) > MAX_BYTES:
        raise FileError(f"{address}: more than {MAX_BYTES >> 20} MiB, which is no image for a call; the download was ended")
    return data
