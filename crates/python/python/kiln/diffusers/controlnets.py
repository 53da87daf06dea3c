"""ControlNets and T2I-Adapters: the networks, and what a call says of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln.diffusers.arguments import dtype, dtypes_of, images, known, numbers, only, repository, same_dtype, without_harmless
from kiln.errors import RequestError

if TYPE_CHECKING:
    from kiln.diffusers.model import Model

#: Of `from_pretrained`.
_FROM_PRETRAINED = ("torch_dtype", "dtype", "use_safetensors", "variant", "subfolder", "revision", "local_files_only")
#: The sizes of images are multiples of this, as diffusers rounds them.
_MULTIPLE = 8


class ControlNetModel:
    """A ControlNet, which its pipeline loads."""

    def __init__(self, path: str, asked: str | None = None) -> None:
        self.path = path
        #: The type that a script asked for, until the network is in a pipeline.
        self._dtype = asked
        #: The model of its pipeline.
        self._model: Model | None = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> ControlNetModel:
        """A ControlNet in a folder, or `OWNER/NAME` on the Hugging Face Hub."""
        arguments = without_harmless(arguments)
        known(f"{cls.__name__}.from_pretrained", arguments, _FROM_PRETRAINED)
        only("use_safetensors", arguments.get("use_safetensors"), (None, True), "Kiln chooses the files")
        only("variant", arguments.get("variant"), (None, "fp16"), "Kiln chooses the files by the type")
        path = repository(pretrained_model_name_or_path, arguments.get("local_files_only"))
        if arguments.get("revision"):
            path += f"@{arguments['revision']}"
        given = arguments.get("dtype", arguments.get("torch_dtype"))
        asked = None if given is None else dtype(given)
        return cls(f"{path}/{arguments['subfolder']}" if arguments.get("subfolder") else path, asked)

    @classmethod
    def from_single_file(cls, pretrained_model_link_or_path: str | os.PathLike[str], **arguments: Any) -> ControlNetModel:
        """A ControlNet in one file."""
        return cls.from_pretrained(pretrained_model_link_or_path, **arguments)

    def to(self, *places: Any, **named: Any) -> ControlNetModel:
        """Nothing changes: a network is where its pipeline is. A type has to be the pipeline's."""
        asked = dtypes_of((*places, *named.values()))
        if asked is not None and self._model is not None:
            same_dtype(type(self).__name__, asked, self._model.dtype)
        elif asked is not None:
            self._dtype = asked
        return self

    def half(self) -> ControlNetModel:
        """The type float16, which the pipeline has to have."""
        return self.to("f16")


class ControlNetUnionModel(ControlNetModel):
    """A ControlNet for several types of control images, which its pipeline loads."""


class T2IAdapter(ControlNetModel):
    """A T2I-Adapter, which its pipeline loads."""


class MultiAdapter:
    """Several T2I-Adapters."""

    def __init__(self, adapters: Sequence[T2IAdapter]) -> None:
        self.adapters = list(adapters)


def networks(
    controlnet: Any, model: Model, kind: type[ControlNetModel] = ControlNetModel, name: str = "controlnet"
) -> list[ControlNetModel]:
    """One network of this class, or several, for a pipeline with this model."""
    found = list(controlnet) if isinstance(controlnet, (list, tuple)) else [controlnet]
    for one in found:
        if type(one) is not kind:
            expected = f"a {kind.__name__} of kiln.diffusers, or a list of them"
            raise RequestError(f"`{name}` is a {type(one).__name__}, expected {expected}", name)
        same_dtype(kind.__name__, one._dtype, model.dtype)
    for one in found:
        one._dtype, one._model = None, model
    return found


def adapters(adapter: Any, model: Model) -> list[ControlNetModel]:
    """One T2I-Adapter, or several, for a pipeline with this model."""
    return networks(adapter.adapters if isinstance(adapter, MultiAdapter) else adapter, model, T2IAdapter, "adapter")


def controls(
    nets: Sequence[ControlNetModel], name: str, image: Any, count: int, arguments: Mapping[str, Any]
) -> list[list[dict[str, Any]]]:
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
