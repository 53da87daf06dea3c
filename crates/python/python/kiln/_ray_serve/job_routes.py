"""Requests about accepted jobs, which find the replica that has the job now."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from ray.exceptions import RayError
from starlette.responses import Response, StreamingResponse

from kiln._ray_serve.keeper import Place, keeper_of
from kiln._ray_serve.kept import repeatable
from kiln._ray_serve.messages import Answer, Question, problem

#: Routes about one job or its images: the number, which begins with the replica that has accepted the job, and what follows it.
_OF_JOB = re.compile(r"/v1/(jobs|images)/(([0-9a-z]+)-[0-9a-f]{16})(?:-\d+)?(/\w+)?/?$")
#: Seconds between two questions for a job that waits for a replica, and the most in all.
_PAUSE, _MOST = 0.25, 900.0
#: How often the keeper is asked.
_ATTEMPTS = 3
_JSON = {"content-type": "application/json"}
_LOST = (RayError, aiohttp.ClientError)

_log = logging.getLogger("ray.serve")


class JobRoutes:
    """The part of the ingress that knows the keeper."""

    def __init__(self, app: str, replica: Any) -> None:
        self._app, self._replica = app, replica
        self._keeper = keeper_of(app)

    async def keep(self, question: Question, model: str, answer: Answer, losses: int) -> None:
        """Has a job kept that a replica has accepted."""
        view = json.loads(answer.content or b"{}")
        try:
            await self._ask("keep", view["id"], repeatable(question, view), model, view, answer.replica, losses)
        except (RayError, ValueError) as error:
            _log.warning(f"job {view['id']} ends with its replica: {error}")

    async def homeless(self, question: Question) -> list[dict[str, Any]]:
        """The client's jobs that no replica has."""
        return await self._ask("homeless", question.authorization)

    async def metrics(self) -> str:
        """The keeper's metrics."""
        return await self._ask("metrics")

    async def answer(self, question: Question) -> Response | None:
        """The answer to a request about a job; None for another route."""
        found = _OF_JOB.match(question.path.split("?")[0])
        if found is None:
            return None
        kind, number, first, action = found.groups()
        end = time.monotonic() + _MOST
        while True:
            place: Place | None = await self._ask("find", number, question.authorization, question.method == "GET")
            if place is None:
                place = Place(first, None, False)  # that replica says what there is to say
            elif place.view is not None:
                answer = await self._without_replica(question, number, kind, action, place.view)
                if answer is not None:
                    return answer
            if place.replica is not None:
                answer = await self._of_replica(question, number, place)
                if answer is not None:
                    return answer
            if time.monotonic() > end:
                return Response(problem("the job waits for a replica", "busy"), status_code=503, headers=_JSON)
            await asyncio.sleep(_PAUSE)

    async def _without_replica(self, question: Question, number: str, kind: str, action: str | None, view: dict[str, Any]) -> Response | None:
        """The answer for a job that no replica has; None to wait for one."""
        content, is_over = json.dumps(view).encode(), view["finished"] is not None
        if kind == "images":
            return Response(problem(f"there is no image of job {number}", "not_found"), 404, _JSON) if is_over else None
        if action == "/events":
            return Response(_done(content), media_type="text/event-stream") if is_over else None
        if question.method == "DELETE":
            await self._ask("close", number)
        elif question.method != "GET" and not is_over:
            return None
        return Response(content, headers=_JSON)

    async def _of_replica(self, question: Question, number: str, place: Place) -> Response | None:
        """The answer of the replica that has a job; None where that has changed."""
        handle = self._replica.options(stream=True, method_name="stream")
        parts = handle.remote(question, replica=place.replica)
        try:
            answer: Answer = await anext(parts)
            if answer.content is not None:
                await anext(parts, None)  # its end, so that Ray counts the request as answered
        except _LOST:
            return None
        except asyncio.CancelledError:
            parts.cancel()
            raise
        is_kept = await self._ask("find", number, question.authorization, False) is not None
        if answer.replica != place.replica and is_kept:
            parts.cancel()
            await self._ask("missing", number, place.replica)
            return None
        if answer.status == 404 and place.is_repeated and is_kept and question.path.startswith("/v1/images/"):
            return None  # it may have been there, and is made again
        if question.method == "DELETE" and answer.status < 300:
            await self._ask("close", number)
        if answer.content is None:
            return StreamingResponse(self._events(question, number, parts), status_code=answer.status, headers=answer.headers)
        return Response(answer.content, status_code=answer.status, headers=answer.headers)

    async def _events(self, question: Question, number: str, parts: Any) -> AsyncIterator[bytes]:
        """Whole events as they come, to the end of the job: if its replica ends, from the one that gets it."""
        left = b""
        try:
            async for part in parts:
                *whole, left = (left + part).rsplit(b"\n\n", 1)
                if not whole:
                    continue
                is_end = b"event: done\n" in whole[0]
                if is_end:
                    await self._ask("ended", number)
                yield whole[0] + b"\n\n"
                if is_end:
                    return
        except _LOST:
            pass
        finally:
            parts.cancel()  # the client went away, or all has been sent
        answer = await self.answer(question)
        if isinstance(answer, StreamingResponse):
            async for part in answer.body_iterator:
                yield part
        elif answer is not None and answer.status_code == 200:
            yield answer.body

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Asks the keeper, and one that is started where it has failed."""
        for attempt in range(_ATTEMPTS):
            try:
                return await getattr(self._keeper, method).remote(*arguments)
            except RayError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                self._keeper = keeper_of(self._app)


def _done(content: bytes) -> bytes:
    """The last event of a job."""
    return b"event: done\ndata: " + content + b"\n\n"
