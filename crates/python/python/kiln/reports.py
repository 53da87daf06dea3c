"""What is known of models, images, devices and options."""

from __future__ import annotations

import json
import os
from typing import Any

from kiln import _kiln
from kiln.image import StrPath


def inspect(path: StrPath, dtype: str = "auto") -> dict[str, Any]:
    """What is in a model folder, a checkpoint file or an image, as `kiln inspect --json` has it. No weights are read."""
    return json.loads(_kiln.inspect(os.fspath(path), dtype))


def devices() -> dict[str, Any]:
    """The GPUs of this machine, as `kiln devices --json` has them."""
    return json.loads(_kiln.devices())


def options() -> dict[str, list[dict[str, Any]]]:
    """The options of a request and of an engine: name, type, help, default and choices."""
    return json.loads(_kiln.options())
