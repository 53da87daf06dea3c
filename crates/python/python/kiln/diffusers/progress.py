"""The progress bar of a call, by tqdm where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Progress:
    """Progress bars with options of tqdm."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = dict(config or {})

    def of_call(self, runs: int) -> Bar:
        """The bar of a call that runs the engine so many times."""
        return Bar(self._config, runs)


class Bar:
    """The progress bar of one call, which appears with the first step."""

    def __init__(self, config: Mapping[str, Any], runs: int) -> None:
        self._config, self._runs, self._ran = config, runs, 0
        self._bar: Any = None
        self._make: Callable[..., Any] | None = None
        if not config.get("disable"):
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return
            self._make = tqdm

    def step(self, done: int, total: int) -> None:
        """After a step of the run."""
        if self._make is None:
            return
        if self._bar is None:
            self._bar = self._make(**{"total": total * self._runs, **self._config})
        self._bar.update(self._ran * total + done - self._bar.n)
        if done == total:
            self._ran += 1

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()
