"""From keywords to an object of JSON: the fields of a line of a job file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kiln.errors import RequestError
from kiln.image import ImageFiles

#: Lists whose parts have files, and the fields of a part that are images.
_PARTS = {"controls": ("image",), "ip_adapters": ("image", "mask"), "loras": ()}
#: Fields that are images.
_IMAGES = ("init", "mask")
#: Fields that are lists of images.
_IMAGE_LISTS = ("references",)


def request_json(fields: Mapping[str, Any], files: ImageFiles) -> str:
    """The fields of a request. Images that are no files are written into `files`."""
    return json.dumps({name: _of_request(name, value, files) for name, value in fields.items() if value is not None})


def options_json(options: Mapping[str, Any]) -> str:
    """Options of an engine or of an image set."""
    return json.dumps({name: plain(name, value) for name, value in options.items() if value is not None})


def _of_request(name: str, value: Any, files: ImageFiles) -> Any:
    if name in _IMAGES:
        return files.path(name, value)
    if name in _IMAGE_LISTS and isinstance(value, Sequence) and not isinstance(value, str):
        return [files.path(name, image) for image in value]
    if name in _PARTS and isinstance(value, Sequence) and not isinstance(value, str):
        return [_part(name, part, files) for part in value]
    if name == "extend" and isinstance(value, Mapping):
        return ",".join(f"{side}={pixels}" for side, pixels in value.items())
    return plain(name, value)


def _part(name: str, part: Any, files: ImageFiles) -> Any:
    if not isinstance(part, Mapping):
        return plain(name, part)
    images = _PARTS[name]
    return {
        key: files.path(name, value) if key in images and value is not None else plain(name, value)
        for key, value in part.items()
    }


def plain(name: str, value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise RequestError(f"`{name}` is {value}, expected a finite number", name)
        return float(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(name, part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(name, part) for part in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain(name, value.item())  # a number of NumPy or PyTorch
    if hasattr(value, "tolist"):
        return plain(name, value.tolist())
    raise RequestError(f"`{name}` is a {type(value).__name__}, expected text, a number or a list", name)
