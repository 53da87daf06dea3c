"""What goes between the ingress, the replicas and the keeper of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

#: Headers that belong to one connection, and the one by which a job gets its number again.
_LEFT_OUT = ("connection", "content-length", "transfer-encoding", "keep-alive", "kiln-job")


@dataclass(frozen=True)
class Question:
    """A request as it came."""

    method: str
    #: With its query.
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def authorization(self) -> str:
        """The key that came with it; empty without one."""
        return next((value for name, value in self.headers if name.lower() == "authorization"), "")


@dataclass(frozen=True)
class Answer:
    """An answer: a whole one, or the head of one whose parts follow."""

    status: int
    headers: dict[str, str]
    content: bytes | None
    #: The replica that gave it.
    replica: str


def passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers that are passed on."""
    return [(name, value) for name, value in headers if name.lower() not in _LEFT_OUT]


def problem(message: str, kind: str) -> bytes:
    """The body of an error, as the server writes it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}}).encode()
