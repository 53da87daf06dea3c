"""Tensors of PyTorch and arrays of NumPy, as a script has them."""

from __future__ import annotations

import sys
from typing import Any

from kiln.diffusers.arguments import shown
from kiln.errors import RequestError

#: Channels of the latents of autoencoders.
CHANNELS = (4, 16)


def of_script(elements: Any) -> Any:
    """A copy of values of the engine: a tensor where the script has imported PyTorch, else an array of NumPy."""
    import numpy

    array = numpy.array(elements, dtype=numpy.float32)
    torch = sys.modules.get("torch")
    return array if torch is None else torch.from_numpy(array)


def values(name: str, given: Any, rank: int = 4) -> Any:
    """The values of a tensor or an array of this rank, as an array of float32 in the host's memory, row by row."""
    import numpy

    if type(given).__module__.split(".")[0] == "torch":
        given = given.detach().to("cpu").float().numpy()
    try:
        array = numpy.ascontiguousarray(given, dtype=numpy.float32)
    except (TypeError, ValueError):
        raise RequestError(f"`{name}` is {shown(given)}, expected a tensor or an array", name) from None
    if array.ndim != rank:
        raise RequestError(f"`{name}` has the shape {array.shape}, expected {rank} dimensions", name)
    return array


def is_latents(given: Any) -> bool:
    """Whether an image is latents `(n, c, h, w)`, such as a call with `output_type="latent"` returns."""
    shape = tuple(getattr(given, "shape", ()))
    return len(shape) == 4 and shape[1] in CHANNELS


def packed(latents: Any) -> Any:
    """Latents `(n, c, h, w)` as FLUX.1's pipelines of diffusers have them: `(n, h/2*w/2, 4*c)`, a token for 2x2 of them."""
    n, c, h, w = latents.shape
    cells = latents.reshape(n, c, h // 2, 2, w // 2, 2)
    moved = cells.permute(0, 2, 4, 1, 3, 5) if hasattr(cells, "permute") else cells.transpose(0, 2, 4, 1, 3, 5)
    return moved.reshape(n, h // 2 * (w // 2), 4 * c)


def unpacked(name: str, tokens: Any, height: int, width: int) -> Any:
    """Packed latents `(n, h/2*w/2, 4*c)` as `(n, c, h, w)`, for this number of latents in each direction."""
    import numpy

    n, rows, width_of_token = tokens.shape
    if rows != height // 2 * (width // 2) or width_of_token % 4:
        expected = f"(n, {height // 2 * (width // 2)}, 64)"
        raise RequestError(f"`{name}` has the shape {tuple(tokens.shape)}, expected {expected} for {8 * width}x{8 * height}", name)
    cells = tokens.reshape(n, height // 2, width // 2, width_of_token // 4, 2, 2).transpose(0, 3, 1, 4, 2, 5)
    return numpy.ascontiguousarray(cells).reshape(n, width_of_token // 4, height, width)


class Conditions:
    """Stands for a tensor with conditions in a callback: the unconditional part, the conditional part, or both.

    A script may leave the unconditional part out, as it does when it turns guidance off; the values are not handed out.
    """

    def __init__(self, name: str, parts: tuple[str, ...]) -> None:
        self._name, self._parts = name, parts

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Conditions, ...]:
        """The parts by themselves."""
        if chunks != len(self._parts) or dim != 0:
            raise RequestError(f"`{self._name}` has {len(self._parts)} parts, which `chunk` separates in dimension 0", self._name)
        return tuple(Conditions(self._name, (part,)) for part in self._parts)

    def __getitem__(self, place: Any) -> Conditions:
        if isinstance(place, slice) and place.step in (None, 1):
            parts = self._parts[place]
            if parts:
                return Conditions(self._name, parts)
        raise RequestError(f"`{self._name}` can be divided into its parts alone: Kiln does not hand out its values", self._name)

    def __len__(self) -> int:
        return len(self._parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RequestError(f"`{self._name}` has no `{name}`: Kiln does not hand out its values", self._name)

    def __repr__(self) -> str:
        return f"<{self._name}: {' and '.join(self._parts)}>"
