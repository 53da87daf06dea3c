"""The keeper of accepted jobs: an actor, which outlives replicas, the ingress, and the application's new versions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorDiedError, RayError

from kiln._ray_serve.kept import Kept
from kiln._ray_serve.messages import Answer, Question

#: The deployment of the replicas.
REPLICAS = "KilnReplica"
#: Seconds for which a job is known after its end, as replicas keep it.
_KEEP = 600.0
#: Bytes of all requests: beyond them the oldest ended jobs are forgotten.
_MOST_BYTES = 1 << 29
#: Seconds between two looks at the replicas and at the jobs that wait.
_PAUSE = 0.25
#: Jobs that are given to replicas at once.
_AT_ONCE = 8
#: Seconds for which a replica may take to accept a job.
_PATIENCE = 60.0
#: A replica of so many seconds may be unknown to an ingress that has not heard of it.
_YOUNG = 5.0
#: The keeper ends after so many seconds without a replica.
_ALONE = 900.0
#: Replicas that have left, of which news may still come.
_LEFT = 1000

_log = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Place:
    """Where a job is."""

    #: The replica that has it.
    replica: str | None
    #: The job for clients, where no replica has it.
    view: dict[str, Any] | None
    #: Whether it is made again, and has not ended.
    is_repeated: bool


def keeper_of(app: str) -> Any:
    """The keeper of an application, which is started where there is none."""
    return KilnKeeper.options(
        name=f"kiln-jobs-{app}", namespace="kiln", get_if_exists=True, lifetime="detached", num_cpus=0, max_restarts=-1, max_task_retries=3
    ).remote(app)


@ray.remote
class KilnKeeper:
    """Knows the accepted jobs of an application, and gives those of a replica that ends to another one.

    A job that had not ended when its replica failed is made again once. All this is in memory: when the keeper fails, jobs go on
    where they are.
    """

    def __init__(self, app: str) -> None:
        self._app = app
        self._jobs: dict[str, Kept] = {}
        #: The replicas, and when they came.
        self._replicas: dict[str, tuple[Any, float]] = {}
        #: Those that have ended, and whether that was by plan.
        self._left: dict[str, bool] = {}
        self._heard = time.monotonic()
        self._again = self._gone = 0
        self._handle: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def report(self, replica: str, actor: Any, unfinished: list[str]) -> None:
        """A replica reports which of its jobs have not ended."""
        self._heard = time.monotonic()
        if replica in self._left:
            return
        if not self._tasks:
            self._start(self._watch())
        if replica not in self._replicas:
            self._replicas[replica] = (actor, time.monotonic())
            self._start(self._follow(replica, actor))
        numbers = set(unfinished)
        for job in self._jobs.values():
            if job.replica == replica:
                job.heard(job.number in numbers)

    async def leave(self, replica: str) -> None:
        """A replica ends by Ray's plan."""
        self._end(replica, is_planned=True)

    async def keep(self, number: str, question: Question, model: str, view: dict[str, Any], replica: str, losses: int) -> None:
        """A replica has accepted a job, whose request was lost with others before, so many times."""
        job = self._jobs[number] = Kept(number, question, question.authorization, model, view, replica, ["one that had not accepted it"] * losses)
        if replica in self._left:
            self._take(job, self._left[replica])

    async def find(self, number: str, authorization: str, repeats: bool) -> Place | None:
        """Where a client's job is; None for one that is not known, or another client's. `repeats` has images made again that were lost."""
        job = self._jobs.get(number)
        if job is None or job.authorization != authorization or (job.replica is None and job.question is None):
            return None
        if repeats:
            job.begin_again()
        view = job.seen() if job.replica is None else None
        return Place(job.replica, view, job.has_moved and job.finished is None)

    async def missing(self, number: str, replica: str) -> None:
        """An ingress has not found the replica of a job among those that take requests."""
        job = self._jobs.get(number)
        if job is None or job.replica != replica:
            return
        known = self._replicas.get(replica)
        if known is None:
            return self._take(job, self._left.get(replica, False))
        actor, since = known
        if time.monotonic() - since > _YOUNG and await _is_alive(actor) and job.replica == replica:
            self._take(job, is_planned=True)  # Ray ends it, and sends it no more requests

    async def ended(self, number: str) -> None:
        """An ingress has seen the end of a job, before its replica reports it."""
        job = self._jobs.get(number)
        if job is not None and job.replica is not None and job.finished is None:
            job.finished = time.monotonic()

    async def close(self, number: str) -> None:
        """A client has canceled a job, or does not need its images any more."""
        job = self._jobs.get(number)
        if job is not None and (job.replica is None or job.finished is not None):
            del self._jobs[number]
        elif job is not None:
            job.question = None

    async def homeless(self, authorization: str) -> list[dict[str, Any]]:
        """The jobs of a client that no replica has, for the list of all jobs."""
        jobs = [job for job in self._jobs.values() if job.replica is None and job.question is not None]
        return [job.seen() for job in jobs if job.authorization == authorization]

    async def metrics(self) -> str:
        """What it has counted, in the format of OpenMetrics."""
        return (
            "# HELP kiln_retried_jobs Jobs that were made again since their replica was lost or ended\n"
            f"# TYPE kiln_retried_jobs counter\nkiln_retried_jobs_total {self._again}\n"
            "# HELP kiln_lost_jobs Jobs that were lost with two replicas\n"
            f"# TYPE kiln_lost_jobs counter\nkiln_lost_jobs_total {self._gone}\n# EOF\n"
        )

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, replica: str, actor: Any) -> None:
        """Waits for the end of a replica."""
        while replica in self._replicas:
            if not await _is_alive(actor):
                return self._end(replica, is_planned=False)
            await asyncio.sleep(_PAUSE)

    def _end(self, replica: str, is_planned: bool) -> None:
        if self._replicas.pop(replica, None) is None and replica in self._left:
            return
        self._left[replica] = is_planned
        if len(self._left) > _LEFT:
            del self._left[next(iter(self._left))]
        jobs = [job for job in self._jobs.values() if job.replica == replica]
        for job in jobs:
            self._take(job, is_planned)
        again = sum(job.waits for job in jobs)
        _log.warning(f"replica {replica} {'ends' if is_planned else 'is lost'}: {again} of its {len(jobs)} jobs are made again")

    def _take(self, job: Kept, is_planned: bool) -> None:
        """Takes a job from a replica that has ended."""
        job.leave(is_planned)
        self._gone += job.error is not None
        if job.question is None:
            self._jobs.pop(job.number, None)

    async def _watch(self) -> None:
        """Gives the jobs that wait to replicas, and forgets old ones."""
        while time.monotonic() - self._heard < _ALONE:
            await asyncio.sleep(_PAUSE)
            try:
                waiting = [job for job in self._jobs.values() if job.waits]
                for first in range(0, len(waiting), _AT_ONCE):
                    placed = await asyncio.gather(*map(self._place, waiting[first : first + _AT_ONCE]))
                    if not all(placed):
                        break
                self._forget()
            except Exception:
                _log.exception("the keeper of jobs")
        ray.kill(ray.get_runtime_context().current_actor)

    async def _place(self, job: Kept) -> bool:
        """Gives a job to a replica; False where none takes it now."""
        if self._handle is None:
            self._handle = serve.get_deployment_handle(REPLICAS, self._app)
        question = job.question
        if question is None:
            return True
        try:
            answer = await asyncio.wait_for(self._ask(question, job.model), _PATIENCE)
        except (RayError, TimeoutError):
            return False  # that replica ends, or there is none
        if answer.status in (429, 503):
            return False
        content = json.loads(answer.content or b"{}")
        if answer.status != 202:
            job.fail(content.get("error", {}).get("message", f"a replica has answered {answer.status}"), "internal")
            return True
        number = content["id"]
        if number != job.number:  # the replica had it already
            with contextlib.suppress(RayError):
                await self._ask(Question("DELETE", f"/v1/jobs/{number}", question.headers, b""), job.model, answer.replica)
        self._again += 1
        job.place(answer.replica)
        if answer.replica in self._left:
            self._take(job, self._left[answer.replica])
        elif self._jobs.get(job.number) is not job or job.question is None:  # canceled meanwhile
            with contextlib.suppress(RayError):
                await self._ask(Question("DELETE", f"/v1/jobs/{job.number}", question.headers, b""), job.model, answer.replica)
        return True

    async def _ask(self, question: Question, model: str, replica: str | None = None) -> Answer:
        handle = self._handle.options(method_name="answer", multiplexed_model_id=model)
        return await handle.remote(question, model=model, replica=replica)

    def _forget(self) -> None:
        ended = sorted((job for job in self._jobs.values() if job.finished is not None), key=lambda job: job.finished)
        held = sum(job.size for job in self._jobs.values())
        for job in ended:
            if held <= _MOST_BYTES and time.monotonic() - job.finished < _KEEP:
                break
            held -= job.size
            del self._jobs[job.number]


async def _is_alive(actor: Any) -> bool:
    """Whether the process of an actor runs; it answers when it has time."""
    try:
        await actor.__ray_ready__.remote()
    except ActorDiedError:
        return False
    except RayError:
        return True  # it cannot be reached at the moment
    return True
