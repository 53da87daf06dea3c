"""Seeds: those of generators of PyTorch, and of a generator for scripts without it."""

from __future__ import annotations

from typing import Any

from kiln.errors import RequestError


class Generator:
    """A seed, as `torch.Generator` has it, for scripts without PyTorch."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._seed: int | None = None

    def manual_seed(self, seed: int) -> Generator:
        self._seed = seed
        return self

    def initial_seed(self) -> int:
        if self._seed is None:
            raise RequestError("`generator` has no seed; call manual_seed", "generator")
        return self._seed


def seeds(generator: Any, count: int) -> list[tuple[int | None, str]]:
    """The seed and the kind of generator of each image; None is for a random one."""
    if generator is None:
        return [(None, "cpu")] * count
    several = generator if isinstance(generator, (list, tuple)) else None
    if several is not None and len(several) != count:
        raise RequestError(f"`generator` has {len(several)} generators, expected {count}, one for each image", "generator")
    for one in several or [generator]:
        _check_unused(one)

    def kind(one: Any) -> str:
        return "cuda" if str(getattr(one, "device", "cpu")).startswith("cuda") else "cpu"

    if several is not None:
        return [(one.initial_seed(), kind(one)) for one in several]
    return [((generator.initial_seed() + i) % 2**64, kind(generator)) for i in range(count)]


def _check_unused(generator: Any) -> None:
    """Refuses a generator of PyTorch that has drawn numbers: Kiln begins with its seed."""
    if isinstance(generator, Generator):
        return
    if not hasattr(generator, "get_state"):
        raise RequestError("`generator` is no torch.Generator and no kiln.diffusers.Generator", "generator")
    import torch

    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    if not torch.equal(fresh.get_state(), generator.get_state()):
        raise RequestError("`generator` has drawn numbers before; call its manual_seed again", "generator")


def mark_used(generator: Any) -> None:
    """Has generators of PyTorch draw a number, so that using them again is noticed."""
    for one in generator if isinstance(generator, (list, tuple)) else [generator]:
        if one is not None and not isinstance(one, Generator):
            import torch

            torch.rand((), generator=one, device=one.device)


def runs(seeds: list[tuple[int | None, str]]) -> list[tuple[int | None, str, int]]:
    """Images that one call makes: seeds one after the other, or all random."""
    runs: list[tuple[int | None, str, int]] = []
    for seed, rng in seeds:
        if runs:
            begin, kind, count = runs[-1]
            follows = seed is None if begin is None else seed == (begin + count) % 2**64
            if follows and kind == rng:
                runs[-1] = (begin, kind, count + 1)
                continue
        runs.append((seed, rng, 1))
    return runs
