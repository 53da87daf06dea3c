"""A Ray Serve application: the routes of `kiln serve`, behind which engines run on several machines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import aiohttp
from ray import serve
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import Response

from kiln import _kiln
from kiln._fields import options_json
from kiln.errors import RequestError

#: Headers that belong to one connection.
_OF_CONNECTION = ("host", "connection", "content-length", "transfer-encoding", "keep-alive")
#: How often a request is sent to another replica, and the seconds before each attempt: a new replica loads its model.
_ATTEMPTS, _PAUSE = 20, 0.5
#: What a request may take.
_TIMEOUT = aiohttp.ClientTimeout(total=3600)
#: Statuses by which a replica says that it ends, or has no place for a job.
_ELSEWHERE = (429, 503)

_OPTIONS = ("model", "models", "replicas", "max_replicas", "queue", "max_batch", "prompt_cache", "num_gpus", "num_cpus")


@serve.deployment
class KilnReplica:
    """An engine with its own server, which batches the steps of all jobs that it has."""

    def __init__(self, models: list[str], engine: Mapping[str, Any], queue: int, max_batch: int | None, store: str | None) -> None:
        self._server = _kiln.Server(models, "127.0.0.1:0", options_json(engine), queue, max_batch, store)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, auto_decompress=False)
        async with self._session.request(method, self._server.url + path, headers=headers, data=body) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_CONNECTION}
            return answer.status, kept, await answer.read()

    def pid(self) -> int:
        return os.getpid()


@serve.deployment
class KilnRouter:
    """Sends each request to a replica, and to another one where that replica is lost."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _OF_CONNECTION]
        problem = "no replica"
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE)
            try:
                status, kept, content = await self._replica.remote(request.method, path, headers, body)
            except (RayError, aiohttp.ClientConnectionError) as error:
                problem = type(error).__name__
                continue
            if status in _ELSEWHERE and attempt + 1 < _ATTEMPTS:
                continue
            return Response(content, status_code=status, headers=kept)
        return Response(f"no replica has answered: {problem}", status_code=503)


def app(options: Mapping[str, Any]) -> serve.Application:
    """The application, for `serve run kiln.ray:app model=models/emoji replicas=2`.

    `model` or `models` (with commas between several), `replicas`, `max_replicas` (more of them while requests wait), `queue`,
    `max_batch`, `prompt_cache` (the address of a Redis), `num_gpus` and `num_cpus` of a replica, and the options of an engine.
    """
    models = options.get("models") or options.get("model")
    if not models:
        raise RequestError("`model` is not given, expected a model: serve run kiln.ray:app model=models/emoji", "model")
    models = models.split(",") if isinstance(models, str) else [os.fspath(model) for model in models]

    def number(name: str, usual: float) -> float:
        try:
            return float(options.get(name, usual))
        except ValueError:
            raise RequestError(f"`{name}` is {options[name]!r}, expected a number", name) from None

    gpus, cpus = number("num_gpus", 0), number("num_cpus", 1)
    engine = {name: value for name, value in options.items() if name not in _OPTIONS}
    engine.setdefault("device", "cuda" if gpus else "cpu")
    engine = {name: int(value) if name == "threads" else value for name, value in engine.items()}
    engine.setdefault("threads", max(int(cpus), 1))
    least = int(number("replicas", 1))
    scaling = {"min_replicas": least, "max_replicas": int(number("max_replicas", least)), "target_ongoing_requests": 8}
    batch = int(number("max_batch", 0)) or None
    replica = KilnReplica.options(
        max_ongoing_requests=64, autoscaling_config=scaling, ray_actor_options={"num_gpus": gpus, "num_cpus": cpus}
    ).bind(models, engine, int(number("queue", 256)), batch, options.get("prompt_cache"))
    return KilnRouter.options(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}).bind(replica)
