"""How many replicas there are."""

from __future__ import annotations

from typing import Any

from ray.serve.config import AutoscalingContext


class BySeconds:
    """A policy of Ray Serve: so many replicas that each has `target` seconds of work.

    Replicas report the seconds that their jobs still take, by the speed of their latest steps (`kiln_queue_seconds`). One that has
    not been measured reports 0; there `target_ongoing_requests` jobs are a replica's work, as are requests that no replica has yet.
    """

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """The replicas, before Ray's bounds and delays, which round it up."""
        metrics = context.aggregated_metrics or {}
        jobs, seconds = metrics.get("jobs", {}), metrics.get("seconds", {})
        jobs_each = context.config.get_target_ongoing_requests()
        work = (context.total_queued_requests or 0.0) / jobs_each
        for replica, count in jobs.items():
            measured = seconds.get(replica, 0.0)
            # One job keeps one replica busy, however long it takes.
            work += min(measured / self._target, count) if measured else count / jobs_each
        return work, {}
