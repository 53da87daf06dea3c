"""A replica: an engine with its own server."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from ray import serve

from kiln import _kiln
from kiln._fields import options_json

#: What a request may take.
_TIMEOUT = aiohttp.ClientTimeout(total=3600)
#: Headers that belong to one connection.
_OF_CONNECTION = ("connection", "content-length", "transfer-encoding", "keep-alive")
#: Answers of this type come in parts.
_EVENTS = "text/event-stream"
#: The metrics by which a replica says how much it has to do.
_JOBS = re.compile(r"^kiln_(?:queue|running)_jobs (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Question:
    """A request as it came."""

    method: str
    #: With its query.
    path: str
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An answer: a whole one, or the head of one whose parts follow."""

    status: int
    headers: dict[str, str]
    content: bytes | None
    #: The replica that gave it.
    replica: str


@serve.deployment
class KilnReplica:
    """An engine with its own server, which batches the steps of all jobs that it has."""

    async def __init__(self, models: list[str], engine: Mapping[str, Any], settings: Mapping[str, Any], key: str | None) -> None:
        self._tag = serve.get_replica_context().replica_id.unique_id
        # The port is open to all users of the machine, the server is not.
        self._key, self._has_key = secrets.token_urlsafe(32), key is not None
        settings = {**settings, "job_prefix": self._tag, "keys": [self._key, *([key] if key else [])]}
        self._server = _kiln.Server(models, "127.0.0.1:0", options_json(engine), settings)
        self._session = aiohttp.ClientSession(self._server.url, timeout=_TIMEOUT, auto_decompress=False)
        answer = await self._ask_itself("/v1/capabilities")
        self._models = [model["id"] for model in json.loads(answer)["models"]]
        await self._use(self._models[0])

    @serve.multiplexed(max_num_models_per_replica=1)
    async def _use(self, model: str) -> str:
        """Says that this replica has a model: its server loads the one of the job that runs."""
        return model

    async def stream(self, question: Question, model: str = "", replica: str | None = None) -> AsyncIterator[Answer | bytes]:
        """An `Answer`, and the parts of one that comes in parts. `replica` is for `ReplicaChoice`."""
        if model in self._models:
            await self._use(model)
        async with self._open(question) as answer:
            is_whole = not answer.headers.get("content-type", "").startswith(_EVENTS)
            yield self._answer(answer, await answer.read() if is_whole else None)
            if not is_whole:
                async for part in answer.content.iter_any():
                    yield part

    async def answer(self, question: Question) -> Answer:
        """A whole answer."""
        async with self._open(question) as answer:
            return self._answer(answer, await answer.read())

    async def models(self) -> list[str]:
        """The names of the models; the first is used where a request names none."""
        return self._models

    async def pid(self) -> int:
        """The process, for tests that end it."""
        return os.getpid()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Jobs that wait or run, for `by_jobs`."""
        text = await self._ask_itself("/metrics")
        return {"jobs": float(sum(map(int, _JOBS.findall(text))))}

    def _open(self, question: Question) -> Any:
        headers = question.headers
        if not self._has_key:
            headers = [(name, value) for name, value in headers if name.lower() != "authorization"]
            headers.append(("authorization", f"Bearer {self._key}"))
        return self._session.request(question.method, question.path, headers=headers, data=question.body)

    def _answer(self, answer: aiohttp.ClientResponse, content: bytes | None) -> Answer:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_CONNECTION}
        return Answer(answer.status, headers, content, self._tag)

    async def _ask_itself(self, path: str) -> str:
        async with self._session.get(path, headers={"authorization": f"Bearer {self._key}"}) as answer:
            answer.raise_for_status()
            return await answer.text()
