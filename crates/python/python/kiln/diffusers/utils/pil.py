"""Arrays and tensors as images of PIL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image


def numpy_to_pil(images: Any) -> list[Image]:
    """Images of PIL for an array `(n, h, w, c)` or `(h, w, c)` of floats from 0 to 1."""
    import PIL.Image

    several = images[None] if images.ndim == 3 else images
    bytes = (several * 255).round().astype("uint8")
    return [PIL.Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image) for image in bytes]


def pt_to_pil(images: Any) -> list[Image]:
    """Images of PIL for a tensor `(n, c, h, w)` of values from -1 to 1."""
    unit = (images / 2 + 0.5).clamp(0, 1)
    return numpy_to_pil(unit.cpu().permute(0, 2, 3, 1).float().numpy())
