"""The application from its options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from kiln._ray_serve.front import KilnRouter
from kiln._ray_serve.replica import KilnReplica
from kiln._ray_serve.routing import ReplicaChoice
from kiln._ray_serve.scaling import BySeconds
from kiln.errors import RequestError

#: The work of one replica whose speed is not known, in jobs: with more of them another replica is started.
JOBS = 8
#: The most requests that a replica has at once, those that follow events among them.
_REQUESTS = 64
#: Numbers, with their defaults.
_NUMBERS = {
    "replicas": 1.0,
    "max_replicas": 0.0,
    "upscale_delay": 30.0,
    "downscale_delay": 600.0,
    "target_seconds": 30.0,
    "grace": 120.0,
    "num_gpus": 0.0,
    "num_cpus": 1.0,
    "queue": 256.0,
    "max_batch": 0.0,
}
#: Options of the server in each replica that are texts.
_FOLDERS = ("control_dir", "ip_adapters_dir", "upscaler_dir")
_TEXTS = {"prompt_cache": "prompt_store", "prompt_cache_key": "prompt_store_key"} | {name: name for name in _FOLDERS}


def app(options: Mapping[str, Any]) -> serve.Application:
    """The application, for `serve run kiln.ray:app model=models/emoji replicas=2`.

    `model` or `models` (with commas between several), `replicas`, `max_replicas` (more of them while jobs wait), `target_seconds`
    (the seconds of work of each), `upscale_delay` and `downscale_delay` (the seconds for which more or fewer replicas have to be right),
    `grace` (the seconds in which a replica that Ray ends finishes the requests that it has), `num_gpus` and `num_cpus` of a replica,
    `queue`, `max_batch`, `prompt_cache` (the address of a Redis) and its `prompt_cache_key`, `api_key`, `control_dir`, `ip_adapters_dir`,
    `upscaler_dir`, and the options of an engine.
    """
    rest = dict(options)
    given = [rest.pop(name, None) for name in ("models", "model")]
    models = given[0] or given[1]
    if not models:
        raise RequestError("`model` is not given, expected a model: serve run kiln.ray:app model=models/emoji", "model")
    models = models.split(",") if isinstance(models, str) else [os.fspath(model) for model in models]
    numbers = {name: _number(rest, name, usual) for name, usual in _NUMBERS.items()}
    settings: dict[str, Any] = {of_server: rest.pop(name) for name, of_server in _TEXTS.items() if rest.get(name)}
    settings |= {"queue": int(numbers["queue"]), "max_batch": int(numbers["max_batch"]) or None}
    if numbers["target_seconds"] <= 0:
        raise RequestError(f"`target_seconds` is {numbers['target_seconds']:g}, expected a number above 0", "target_seconds")
    key = rest.pop("api_key", None)

    engine = {name: int(value) if name == "threads" else value for name, value in rest.items()}
    engine.setdefault("device", "cuda" if numbers["num_gpus"] else "cpu")
    engine.setdefault("threads", max(int(numbers["num_cpus"]), 1))
    least = int(numbers["replicas"])
    delays = {"upscale_delay_s": numbers["upscale_delay"], "downscale_delay_s": numbers["downscale_delay"]}
    scaling = AutoscalingConfig(
        min_replicas=least,
        max_replicas=max(int(numbers["max_replicas"]), least),
        target_ongoing_requests=JOBS,
        policy=AutoscalingPolicy(policy_function=BySeconds, policy_kwargs={"target": numbers["target_seconds"]}),
        **delays,
    )
    replica = KilnReplica.options(
        max_ongoing_requests=_REQUESTS,
        graceful_shutdown_timeout_s=numbers["grace"],
        autoscaling_config=scaling,
        request_router_config=RequestRouterConfig(request_router_class=ReplicaChoice),
        ray_actor_options={"num_gpus": numbers["num_gpus"], "num_cpus": numbers["num_cpus"]},
    ).bind(models, engine, settings, key)
    return KilnRouter.options(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}).bind(replica, key is not None)


def _number(options: dict[str, Any], name: str, usual: float) -> float:
    value = options.pop(name, usual)
    try:
        return float(value)
    except ValueError:
        raise RequestError(f"`{name}` is {value!r}, expected a number", name) from None
