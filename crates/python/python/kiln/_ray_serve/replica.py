"""A replica: an engine with its own server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayError

from kiln import _kiln
from kiln._fields import options_json
from kiln._ray_serve.keeper import keeper_of
from kiln._ray_serve.messages import Answer, Question, passed

#: What a request may take.
_TIMEOUT = aiohttp.ClientTimeout(total=3600)
#: Answers of this type come in parts.
_EVENTS = "text/event-stream"
#: The metrics by which a replica says how much it has to do.
_LOAD = re.compile(r"^kiln_(queue_jobs|running_jobs|queue_seconds) (\S+)$", re.MULTILINE)
#: Seconds between two reports to the keeper of jobs.
_REPORT = 1.0


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
        self._app = serve.get_replica_context().app_name
        self._keeper = keeper_of(self._app)
        self._reports = asyncio.create_task(self._report())

    async def __del__(self) -> None:
        """Ray ends the replica: its jobs go to others, and lose nothing by that."""
        self._reports.cancel()
        await self._keeper.leave.remote(self._tag)

    async def _report(self) -> None:
        """Tells the keeper of jobs which ones have not ended, and what it can follow to see that this process ends."""
        actor = ray.get_runtime_context().current_actor
        while True:
            try:
                await self._keeper.report.remote(self._tag, actor, self._server.unfinished())
            except RayError:
                self._keeper = keeper_of(self._app)
            await asyncio.sleep(_REPORT)

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

    async def answer(self, question: Question, model: str = "", replica: str | None = None) -> Answer:
        """A whole answer. `replica` is for `ReplicaChoice`."""
        if model in self._models:
            await self._use(model)
        async with self._open(question) as answer:
            return self._answer(answer, await answer.read())

    async def models(self) -> list[str]:
        """The names of the models; the first is used where a request names none."""
        return self._models

    async def pid(self, replica: str | None = None) -> int:
        """The process, for tests that end it. `replica` is for `ReplicaChoice`."""
        return os.getpid()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Jobs that wait or run, and the seconds that they still take, for `BySeconds`."""
        load = {name: float(value) for name, value in _LOAD.findall(await self._ask_itself("/metrics"))}
        return {"jobs": load["queue_jobs"] + load["running_jobs"], "seconds": load["queue_seconds"]}

    def _open(self, question: Question) -> Any:
        headers = question.headers
        if not self._has_key:
            headers = [(name, value) for name, value in headers if name.lower() != "authorization"]
            headers.append(("authorization", f"Bearer {self._key}"))
        return self._session.request(question.method, question.path, headers=headers, data=question.body)

    def _answer(self, answer: aiohttp.ClientResponse, content: bytes | None) -> Answer:
        return Answer(answer.status, dict(passed(answer.headers.items())), content, self._tag)

    async def _ask_itself(self, path: str) -> str:
        async with self._session.get(path, headers={"authorization": f"Bearer {self._key}"}) as answer:
            answer.raise_for_status()
            return await answer.text()
