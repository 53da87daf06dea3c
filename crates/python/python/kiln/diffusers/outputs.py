"""What a call returns."""

from __future__ import annotations

from typing import Any

from kiln.image import Image

#: The values of `output_type`.
TYPES = ("pil", "np", "pt", "latent")


class StableDiffusionPipelineOutput(tuple[Any, Any]):
    """The images of a call: `output.images`, or `output[0]`."""

    @property
    def images(self) -> Any:
        return self[0]

    @property
    def nsfw_content_detected(self) -> None:
        """Nothing: Kiln has no filter of contents."""
        return self[1]


def output(images: list[Image], output_type: str | None, return_dict: bool) -> Any:
    """Images as they are asked for."""
    if output_type == "pil":
        result: Any = [image.pil() for image in images]
    elif output_type == "latent":
        import torch

        result = torch.cat([image.latents.torch() for image in images if image.latents is not None])
    else:
        import numpy

        result = numpy.stack([image.numpy() for image in images]).astype(numpy.float32) / 255.0
        if output_type == "pt":
            import torch

            result = torch.from_numpy(result.transpose(0, 3, 1, 2).copy())
    return StableDiffusionPipelineOutput((result, None)) if return_dict else (result, None)
