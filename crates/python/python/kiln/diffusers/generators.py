"""Generators of random numbers, and the noise that the images of a call draw from them, in the order of diffusers."""

from __future__ import annotations

import secrets
from typing import Any

from kiln import _kiln
from kiln.errors import RequestError


class Generator:
    """The equivalent of `torch.Generator`, for scripts without PyTorch. Each call goes on where the last one ended."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._seed: int | None = None
        self._rng: _kiln.Rng | None = None

    def manual_seed(self, seed: int) -> Generator:
        """Begins with this seed."""
        if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
            raise RequestError(f"`seed` is {seed!r}, expected a whole number of 64 bits", "seed")
        self._seed = seed % 2**64
        self._rng = _kiln.Rng(self._seed, "cuda" if str(self.device).startswith("cuda") else "cpu")
        return self

    def seed(self) -> int:
        """Begins with a random seed, and returns it."""
        self.manual_seed(secrets.randbits(63))
        return self.initial_seed()

    def initial_seed(self) -> int:
        """The seed that it began with."""
        if self._seed is None:
            raise RequestError("`generator` has no seed; call manual_seed", "generator")
        return self._seed

    def normals(self, count: int) -> memoryview:
        """The values of `torch.randn(count)`, as a buffer of float32."""
        if self._rng is None:
            raise RequestError("`generator` has no seed; call manual_seed", "generator")
        return memoryview(self._rng.normals(count))


def checked(generator: Any, count: int) -> list[Any] | None:
    """The generators of a call with `count` images: None, one for all, or one for each."""
    if generator is None:
        return None
    several = list(generator) if isinstance(generator, (list, tuple)) else None
    if several is not None and len(several) != count:
        raise RequestError(f"`generator` has {len(several)} generators, expected {count}, one for each image", "generator")
    for one in several or [generator]:
        if isinstance(one, Generator):
            one.initial_seed()
        elif not hasattr(one, "get_state") or not hasattr(one, "initial_seed"):
            raise RequestError(f"`generator` is a {type(one).__name__}, expected torch.Generator or kiln.diffusers.Generator", "generator")
    return several if several is not None else [generator]


class Draws:
    """The noise of all images of a call.

    One generator draws for all images at once, a list draws one image after the other. The images of a prompt are made
    together, and those of the next prompt after them: each draw is kept until all images have had their part.
    """

    def __init__(self, generators: list[Any] | None, count: int, inputs: int = 1, latents: Any = None) -> None:
        #: None: the engine draws by random seeds.
        self.generators = generators
        self.count = count
        #: For how many images a sample of the latents of input images is drawn.
        self._inputs = inputs
        #: Given first noise, `(count, c, h, w)` in float32, by images.
        self._latents: list[memoryview] | None = latents
        self._drawn: dict[int, list[memoryview]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether the engine has to ask for noise."""
        return self.generators is not None or self._latents is not None

    def part(self, number: int, is_of_input: bool, first: int, shape: tuple[int, int, int, int]) -> Any:
        """A draw for the images from number `first` on, `(n, c, h, w)`; None where the engine draws."""
        n, size = shape[0], shape[1] * shape[2] * shape[3]
        if self._latents is not None and not is_of_input and number == 0:
            parts = self._latents
        elif self.generators is None:
            return None
        else:
            if number not in self._drawn:
                count = min(self._inputs, self.count) if is_of_input else self.count
                self._drawn[number] = self._draw(self.generators, count, size)
            parts = self._drawn[number]
        if len(parts[0]) != size:
            raise RequestError("`generator` draws for images of several sizes, expected one size in a call", "generator")
        # An input image that several images share has one sample.
        per_part = self.count // len(parts)
        return memoryview(b"".join(parts[(first + i) // per_part] for i in range(n))).cast("f")

    def _draw(self, generators: list[Any], count: int, size: int) -> list[memoryview]:
        if len(generators) == 1:
            values = normals(generators[0], count * size)
            return [values[i * size : (i + 1) * size] for i in range(count)]
        return [normals(one, size) for one in generators[:count]]


def normals(generator: Any, count: int) -> memoryview:
    """The next normals of a generator, which goes on."""
    if isinstance(generator, Generator):
        return generator.normals(count)
    import torch

    values = torch.randn(count, generator=generator, device=generator.device, dtype=torch.float32)
    return memoryview(values.cpu().numpy())


def seed_of(generator: Any) -> int:
    """The seed that a generator began with, for samplers whose noise is a path."""
    return generator.initial_seed() % 2**64


def kind_of(generator: Any) -> str:
    """Whether a generator is PyTorch's of the CPU or of CUDA."""
    return "cuda" if str(getattr(generator, "device", "cpu")).startswith("cuda") else "cpu"
