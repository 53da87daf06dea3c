"""ControlNets: the networks, and what a call says of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kiln.diffusers.arguments import images, known, numbers, repository
from kiln.errors import RequestError

#: Of `ControlNetModel.from_pretrained`; the type is the pipeline's.
_FROM_PRETRAINED = ("torch_dtype", "dtype", "use_safetensors", "variant", "subfolder")
#: The sizes of images are multiples of this, as diffusers rounds them.
_MULTIPLE = 8


class ControlNetModel:
    """A ControlNet, which its pipeline loads."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> ControlNetModel:
        """A ControlNet in a folder, or `OWNER/NAME` on the Hugging Face Hub."""
        known("ControlNetModel.from_pretrained", arguments, _FROM_PRETRAINED)
        path = repository(pretrained_model_name_or_path)
        return cls(f"{path}/{arguments['subfolder']}" if arguments.get("subfolder") else path)

    @classmethod
    def from_single_file(cls, pretrained_model_link_or_path: str | os.PathLike[str], **arguments: Any) -> ControlNetModel:
        """A ControlNet in one file."""
        return cls.from_pretrained(pretrained_model_link_or_path, **arguments)

    def to(self, *_: Any, **__: Any) -> ControlNetModel:
        """Nothing: a network is where its pipeline is."""
        return self


def networks(controlnet: Any) -> list[ControlNetModel]:
    """One network, or several."""
    found = list(controlnet) if isinstance(controlnet, (list, tuple)) else [controlnet]
    for one in found:
        if not isinstance(one, ControlNetModel):
            kind = type(one).__name__
            raise RequestError(f"`controlnet` is a {kind}, expected a ControlNetModel of kiln.diffusers, or a list of them", "controlnet")
    return found


def controls(nets: Sequence[ControlNetModel], name: str, image: Any, count: int, arguments: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The controls of each of `count` prompts. `image` is one for each network, or, of a single network, one for each prompt."""
    if len(nets) == 1:
        of_prompts = [[one] for one in images(name, image, count)]
    else:
        several = list(image) if isinstance(image, (list, tuple)) else []
        if len(several) != len(nets) or any(isinstance(one, (list, tuple)) for one in several):
            raise RequestError(f"`{name}` is not a list of {len(nets)} images, one for each ControlNet", name)
        of_prompts = [several] * count
    factors = {
        key: numbers(argument, arguments[argument], len(nets), "ControlNet")
        for key, argument in (
            ("weight", "controlnet_conditioning_scale"),
            ("start", "control_guidance_start"),
            ("end", "control_guidance_end"),
        )
    }
    guess = {"guess": True} if arguments["guess_mode"] else {}
    return [
        [
            {"net": net.path, "image": one, **{key: values[i] for key, values in factors.items()}, **guess}
            for i, (net, one) in enumerate(zip(nets, of_prompt, strict=True))
        ]
        for of_prompt in of_prompts
    ]


def size_of(name: str, image: Any) -> tuple[int, int]:
    """The height and width of results that follow an image."""
    size = getattr(image, "size", None)
    shape = tuple(getattr(image, "shape", ()))
    if isinstance(size, tuple) and len(size) == 2 and not shape:
        width, height = size  # of PIL, or of Kiln
    elif len(shape) in (2, 3, 4):
        shape = shape[1:] if len(shape) == 4 else shape
        # Tensors of PyTorch have their channels first.
        height, width = shape[1:] if len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] > 4 else shape[:2]
    else:
        raise RequestError(f"`{name}` has no size, expected an image of PIL, an array or a tensor", name)
    return height - height % _MULTIPLE, width - width % _MULTIPLE
