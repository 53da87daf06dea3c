"""What a call returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln.image import Image

#: The values of `output_type`.
TYPES = ("pil", "np", "pt", "latent")


class Output(tuple[Any, ...]):
    """The values of a call by their place and by their name."""

    _names: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: Any, return_dict: bool) -> Any:
        """The result of a call, with names where they are asked for."""
        values = (result, *(None for _ in cls._names[1:]))
        return cls(values) if return_dict else values

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            if place not in self._names:
                raise KeyError(place)
            return super().__getitem__(self._names.index(place))
        return super().__getitem__(place)

    def keys(self) -> tuple[str, ...]:
        """The names."""
        return self._names

    def values(self) -> tuple[Any, ...]:
        """The values."""
        return tuple(self)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and values."""
        return zip(self._names, self)

    def to_tuple(self) -> tuple[Any, ...]:
        """The values."""
        return tuple(self)

    @property
    def images(self) -> Any:
        """The images, of the kind of `output_type`."""
        return self[0]


class StableDiffusionPipelineOutput(Output):
    """The images of a call: `output.images`, `output["images"]` or `output[0]`."""

    _names = ("images", "nsfw_content_detected")

    @property
    def nsfw_content_detected(self) -> None:
        """Nothing: Kiln has no filter of contents."""
        return self[1]


class StableDiffusionXLPipelineOutput(Output):
    """The images of a call of an XL pipeline: `output.images`, `output["images"]` or `output[0]`."""

    _names = ("images",)


class StableDiffusion3PipelineOutput(Output):
    """The images of a call of a pipeline for Stable Diffusion 3: `output.images`, `output["images"]` or `output[0]`."""

    _names = ("images",)


class FluxPipelineOutput(Output):
    """The images of a call of a pipeline for FLUX.1: `output.images`, `output["images"]` or `output[0]`."""

    _names = ("images",)


def results(images: list[Image], output_type: str) -> Any:
    """Images as they are asked for."""
    if output_type == "pil":
        return [image.pil() for image in images]
    import numpy

    if output_type == "latent":
        latents = numpy.concatenate([image.latents.numpy() for image in images if image.latents is not None])
        try:
            import torch
        except ImportError:
            return latents
        return torch.from_numpy(latents)

    result = numpy.stack([image.numpy() for image in images]).astype(numpy.float32) / 255.0
    if output_type == "pt":
        import torch

        return torch.from_numpy(result.transpose(0, 3, 1, 2).copy())
    return result
