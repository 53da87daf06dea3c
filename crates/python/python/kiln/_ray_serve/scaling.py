"""How many replicas there are."""

from __future__ import annotations

from typing import Any

from ray.serve.config import AutoscalingContext


def by_jobs(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """The replicas for the work that there is, before Ray's bounds and delays.

    The work is the requests that wait for their answers, or the jobs of all replicas where these are more: a client of `/v1/jobs`
    has its answer before its job begins.
    """
    jobs = sum((context.aggregated_metrics or {}).get("jobs", {}).values())
    work = max(jobs, context.total_num_requests)
    return work / context.config.get_target_ongoing_requests(), {}
