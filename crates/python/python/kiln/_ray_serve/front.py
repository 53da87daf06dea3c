"""What answers clients: it sends their requests to replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from ray import serve
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kiln._ray_serve.job_routes import JobRoutes
from kiln._ray_serve.kept import MOST_LOSSES
from kiln._ray_serve.merging import merged_jobs, merged_metrics
from kiln._ray_serve.messages import Answer, Question, passed, problem

#: How often a request is sent to another replica, and the seconds before each attempt: a new replica loads its model.
_ATTEMPTS, _PAUSE = 20, 0.5
#: Statuses by which a replica says that it ends, or has no place for a job.
_ELSEWHERE = (429, 503)
#: Seconds for what all replicas are asked.
_ALL_TIMEOUT = 30.0
_JOBS, _METRICS = "/v1/jobs", "/metrics"


@serve.deployment
class KilnRouter:
    """Sends each request to a replica, and to another one where that replica is lost."""

    def __init__(self, replica: Any, has_key: bool) -> None:
        self._replica, self._has_key = replica, has_key
        self._jobs = JobRoutes(serve.get_replica_context().app_name, replica)
        self._models: list[str] | None = None

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        if request.url.query:
            path += f"?{request.url.query}"
        headers = passed(request.headers.items())
        if not self._has_key:  # all clients are one
            headers = [(name, value) for name, value in headers if name.lower() != "authorization"]
        question = Question(request.method, path, headers, await request.body())
        if question.method == "GET" and request.url.path in (_JOBS, _METRICS):
            return await self._ask_all(question, request.url.path)
        answer = await self._jobs.answer(question)
        return answer if answer is not None else await self._send(question, request.url.path)

    async def _send(self, question: Question, route: str) -> Response:
        """Sends a request to any replica. One that may have ended two replicas is not given to a third one."""
        model = await self._model_of(question)
        reason, losses = "", 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE)
            handle = self._replica.options(stream=True, method_name="stream", multiplexed_model_id=model)
            parts = handle.remote(question, model=model)
            try:
                answer: Answer = await anext(parts)
                if answer.content is not None:
                    await anext(parts, None)  # its end, so that Ray counts the request as answered
            except (RayError, aiohttp.ClientConnectionError) as error:
                reason, losses = type(error).__name__, losses + 1
                if question.method == "POST" and losses >= MOST_LOSSES:
                    break
                continue
            except asyncio.CancelledError:
                parts.cancel()  # the client went away: its job ends
                raise
            if answer.status in _ELSEWHERE and attempt + 1 < _ATTEMPTS:
                continue
            if answer.status == 202 and route == _JOBS:
                await self._jobs.keep(question, model, answer, losses)
            if answer.content is None:
                return StreamingResponse(_passed_on(parts), status_code=answer.status, headers=answer.headers)
            return Response(answer.content, status_code=answer.status, headers=answer.headers)
        message = f"no replica has answered: {reason}, {losses} times; send the request again if it did not end them"
        return Response(problem(message, "lost"), status_code=503, media_type="application/json")

    async def _model_of(self, question: Question) -> str:
        """The model that a request is about, where there are several."""
        if self._models is None:
            self._models = await self._replica.models.remote()
        if len(self._models) < 2:
            return ""
        named = _named_model(question)
        return named if named in self._models else self._models[0]

    async def _ask_all(self, question: Question, route: str) -> Response:
        """Asks all replicas that run. Those that are lost meanwhile are left out."""
        everything = self._replica.broadcast("answer", question)
        answers = await everything.results_async(timeout_s=_ALL_TIMEOUT, return_exceptions=True)
        answers = [answer for answer in answers if isinstance(answer, Answer)]
        for answer in answers:
            if answer.status != 200:
                return Response(answer.content, status_code=answer.status, headers=answer.headers)
        if not answers:
            return Response("no replica has answered", status_code=503)
        contents = {answer.replica: answer.content or b"" for answer in answers}
        if route == _JOBS:
            content = merged_jobs([*contents.values()], await self._jobs.homeless(question))
        else:
            texts = {replica: content.decode() for replica, content in contents.items()}
            content = merged_metrics({**texts, "keeper": await self._jobs.metrics()}).encode()
        return Response(content, headers=answers[0].headers)


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
