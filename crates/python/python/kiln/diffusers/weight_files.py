"""Files of weights in the format safetensors: the names in one, and one for the tensors of a script."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

from kiln.diffusers.arguments import shown
from kiln.errors import FileError, RequestError

#: The names of types in the format, by those of NumPy.
_TYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8"}
#: The longest header that is read.
_MAX_HEADER = 100 * 2**20


def write(path: str, tensors: Mapping[str, Any]) -> str:
    """Writes tensors of PyTorch or arrays of NumPy, and returns the path."""
    import numpy

    header: dict[str, Any] = {}
    parts: list[bytes] = []
    end = 0
    for name, value in tensors.items():
        kind = None
        if type(value).__module__.split(".")[0] == "torch":
            import torch

            value = value.detach().cpu().contiguous()
            if value.dtype == torch.bfloat16:
                kind, value = "BF16", value.view(torch.int16)
            value = value.numpy()
        if not isinstance(value, numpy.ndarray):
            raise RequestError(f"`{name}` is {shown(value)}, expected a tensor or an array", "pretrained_model_name_or_path_or_dict")
        kind = kind or _TYPES.get(str(value.dtype))
        if kind is None:
            message = f"`{name}` has the type {value.dtype}, expected of {', '.join(_TYPES)}"
            raise RequestError(message, "pretrained_model_name_or_path_or_dict")
        data = numpy.ascontiguousarray(value).tobytes()
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part)
    return path


def names(path: str) -> list[str]:
    """The names of the tensors in a file."""
    try:
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            if length > min(_MAX_HEADER, os.path.getsize(path)):
                raise ValueError("its header is longer than the file")
            return [name for name in json.loads(file.read(length)) if name != "__metadata__"]
    except (OSError, ValueError, struct.error) as error:
        raise FileError(f"{path}: {error}; expected a file in the format safetensors") from error


def networks_of(path: str) -> list[str]:
    """The networks for which a LoRA file has weights: unet, text_encoder, text_encoder_2."""
    if os.path.isdir(path):
        files = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        path = os.path.join(path, files[0]) if files else path
    marks = {
        "text_encoder_2": ("text_encoder_2.", "lora_te2_"),
        "text_encoder": ("text_encoder.", "lora_te_", "lora_te1_"),
    }
    found = {"unet": False, "text_encoder": False, "text_encoder_2": False}
    for name in names(path):
        network = next((network for network, begins in marks.items() if name.startswith(begins)), "unet")
        found[network] = True
    return [network for network, has in found.items() if has]
