"""Tensors of PyTorch and arrays of NumPy, as a script has them."""

from __future__ import annotations

import sys
from typing import Any

from kiln.diffusers.arguments import shown
from kiln.errors import RequestError


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


def is_latents(given: Any, channels: int = 4) -> bool:
    """Whether an image is latents `(n, c, h, w)`, such as a call with `output_type="latent"` returns."""
    shape = tuple(getattr(given, "shape", ()))
    return len(shape) == 4 and shape[1] == channels


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
