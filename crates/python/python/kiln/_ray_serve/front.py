"""What answers clients: it sends their requests to replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
from ray import serve
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kiln._ray_serve.merging import merged_jobs, merged_metrics
from kiln._ray_serve.replica import Answer, Question
from kiln._ray_serve.routing import replica_of

#: Headers that belong to one connection.
_OF_CONNECTION = ("connection", "content-length", "transfer-encoding", "keep-alive")
#: How often a request is sent to another replica, and the seconds before each attempt: a new replica loads its model.
_ATTEMPTS, _PAUSE = 20, 0.5
#: Statuses by which a replica says that it ends, or has no place for a job.
_ELSEWHERE = (429, 503)
#: Seconds for what all replicas are asked.
_ALL_TIMEOUT = 30.0


@serve.deployment
class KilnRouter:
    """Sends each request to a replica, and to another one where that replica is lost."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica
        self._models: list[str] | None = None

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        if request.url.query:
            path += f"?{request.url.query}"
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _OF_CONNECTION]
        question = Question(request.method, path, headers, await request.body())
        merge = _OF_ALL.get((request.method, request.url.path))
        if merge is not None:
            return await self._ask_all(question, merge)
        named = replica_of(request.url.path)
        model = "" if named else await self._model_of(question)
        problem = "no replica"
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE)
            handle = self._replica.options(stream=True, method_name="stream", multiplexed_model_id=model)
            parts = handle.remote(question, model=model, replica=named)
            try:
                answer: Answer = await anext(parts)
                if answer.content is not None:
                    await anext(parts, None)  # its end, so that Ray counts the request as answered
            except (RayError, aiohttp.ClientConnectionError) as error:
                problem = type(error).__name__
                continue
            except asyncio.CancelledError:
                parts.cancel()  # the client went away: its job ends
                raise
            if answer.status in _ELSEWHERE and named is None and attempt + 1 < _ATTEMPTS:
                continue
            if answer.content is None:
                return StreamingResponse(_passed_on(parts), status_code=answer.status, headers=answer.headers)
            return Response(answer.content, status_code=answer.status, headers=answer.headers)
        return Response(f"no replica has answered: {problem}", status_code=503)

    async def _model_of(self, question: Question) -> str:
        """The model that a request is about, where there are several."""
        if self._models is None:
            self._models = await self._replica.models.remote()
        if len(self._models) < 2:
            return ""
        named = _named_model(question)
        return named if named in self._models else self._models[0]

    async def _ask_all(self, question: Question, merge: Callable[[list[Answer]], bytes]) -> Response:
        """Asks all replicas that run. Those that are lost meanwhile are left out."""
        everything = self._replica.broadcast("answer", question)
        answers = await everything.results_async(timeout_s=_ALL_TIMEOUT, return_exceptions=True)
        answers = [answer for answer in answers if isinstance(answer, Answer)]
        for answer in answers:
            if answer.status != 200:
                return Response(answer.content, status_code=answer.status, headers=answer.headers)
        if not answers:
            return Response("no replica has answered", status_code=503)
        return Response(merge(answers), headers=answers[0].headers)


def _named_model(question: Question) -> Any:
    """The name of a model in the body of a request to Kiln's, OpenAI's or AUTOMATIC1111's routes."""
    try:
        body = json.loads(question.body)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    settings = body.get("override_settings")
    return body.get("model") or (settings.get("sd_model_checkpoint") if isinstance(settings, dict) else None)


async def _passed_on(parts: Any) -> AsyncIterator[bytes]:
    """The parts of an answer as they come."""
    try:
        async for part in parts:
            yield part
    finally:
        parts.cancel()  # the client went away, or all has been sent


#: Routes about all replicas.
_OF_ALL: dict[tuple[str, str], Callable[[list[Answer]], bytes]] = {
    ("GET", "/metrics"): lambda all: merged_metrics({answer.replica: (answer.content or b"").decode() for answer in all}).encode(),
    ("GET", "/v1/jobs"): lambda all: merged_jobs([answer.content or b"" for answer in all]),
}
