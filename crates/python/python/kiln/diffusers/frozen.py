"""Configurations that are read alone."""

from __future__ import annotations

from typing import Any

from kiln.errors import RequestError


class FrozenConfig(dict[str, Any]):
    """A configuration that is read alone: a change of it would not be seen by the engine."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def _refuse(self, name: str) -> None:
        raise RequestError(f"the configuration cannot be changed: `{name}` is assigned", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._refuse(name)

    def __delitem__(self, name: str) -> None:
        self._refuse(name)

    def pop(self, name: str, *_: Any) -> Any:  # type: ignore[override]
        self._refuse(name)

    def update(self, *_: Any, **named: Any) -> None:  # type: ignore[override]
        self._refuse(next(iter(named), "update"))
