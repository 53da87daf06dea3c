"""A job of `/v1/jobs` that was accepted, as the keeper knows it."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import Any

from kiln._ray_serve.messages import Question

#: A job is given to so many replicas at most that are lost with it: it may be what ends them.
MOST_LOSSES = 2
#: Reports of a replica that are so many seconds younger than a job's arrival there may not know of it.
_NEW = 2.0


@dataclass
class Kept:
    """An accepted job, and where it is."""

    number: str
    #: The request with its seed, to make the job again. None after a client has canceled it.
    question: Question | None
    #: The key of the client that has sent it.
    authorization: str
    model: str
    #: The job as it was accepted.
    view: dict[str, Any]
    #: The replica that has it; None while it waits for one.
    replica: str | None
    #: The replicas that were lost while they had it, before its end.
    lost: list[str] = field(default_factory=list)
    #: Why it is not made any more.
    error: tuple[str, str] | None = None
    #: When a replica said that it has ended.
    finished: float | None = None
    #: Whether a replica had it before: its images may have been there.
    has_moved: bool = False
    #: When it came to its replica.
    placed: float = field(default_factory=time.monotonic)

    @property
    def waits(self) -> bool:
        """Whether it has to be given to a replica."""
        return self.replica is None and self.error is None and self.finished is None

    @property
    def size(self) -> int:
        """The bytes of its request."""
        return len(self.question.body) if self.question else 0

    def leave(self, is_planned: bool) -> None:
        """Its replica ends: by Ray's plan, or by a failure, for which a job that has not ended may be the reason."""
        replica, self.replica = self.replica, None
        if replica is None:
            return
        self.has_moved = True
        if self.finished is not None:
            return
        if not is_planned:
            self.lost.append(replica)
        if len(self.lost) >= MOST_LOSSES:
            replicas = " and ".join(self.lost)
            message = f"the job was lost with two replicas, {replicas}, and is not tried a third time; send it again if it did not end them"
            self.fail(message, "lost")

    def fail(self, message: str, kind: str) -> None:
        """Ends it with an error."""
        self.error, self.finished = (message, kind), time.monotonic()

    def begin_again(self) -> None:
        """Has it made again when its images were lost with a replica."""
        if self.replica is None and self.error is None and self.finished is not None:
            self.finished = None

    def place(self, replica: str) -> None:
        """A replica has taken it."""
        self.replica, self.placed = replica, time.monotonic()

    def heard(self, is_unfinished: bool) -> None:
        """What its replica reports of it."""
        if is_unfinished:
            self.finished = None
        elif self.finished is None and time.monotonic() - self.placed > _NEW:
            self.finished = time.monotonic()

    def seen(self) -> dict[str, Any]:
        """The job for clients, while no replica has it."""
        view = {**self.view, "status": "queued", "position": None, "started": None, "finished": None, "images": []}
        view |= {"progress": 0.0, "step": 0, "eta": None}
        if self.error is not None:
            message, kind = self.error
            error = {"message": message, "type": kind, "param": None, "code": kind}
            view |= {"status": "failed", "finished": time.time(), "error": error}
        return view


def repeatable(question: Question, view: dict[str, Any]) -> Question:
    """A request with the seeds that were drawn when it was accepted, and the number of its job."""
    fields = json.loads(question.body)
    drawn = view["request"]
    fields["seed"] = drawn["seed"]
    if "subseed" in drawn:
        fields.pop("variation_seed", None)
        fields["subseed"] = drawn["subseed"]
    headers = [*question.headers, ("kiln-job", view["id"])]
    return dataclasses.replace(question, body=json.dumps(fields).encode(), headers=headers)
