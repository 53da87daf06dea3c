"""Options of the application: replicas that follow the jobs, a key, and a Redis for encoded prompts."""

import os
import time
from types import SimpleNamespace

import pytest
from conftest import MODEL

# Otherwise replicas say every ten seconds how much they have to do.
os.environ["RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "1"
pytest.importorskip("ray.serve")
pytest.importorskip("aiohttp")
from ray_server import application, redis, until  # noqa: E402

from kiln._ray_serve.scaling import BySeconds  # noqa: E402

KEY = {"authorization": "Bearer a key for tests"}


def test_replicas_follow_the_seconds_of_work():
    options = {"model": str(MODEL), "replicas": "1", "max_replicas": "2", "upscale_delay": "0", "downscale_delay": "1"}
    with application(**options, target_seconds="2") as app:
        assert len(app.replicas()) == 1
        numbers = [app.submit(steps=900, width=128, height=128) for _ in range(3)]
        until(lambda: len(app.replicas()) == 2, "no replica is added for 3 long jobs")
        assert app.metric("kiln_queue_seconds") > 2
        for number in numbers:
            app.ask("DELETE", f"/v1/jobs/{number}")
        until(lambda: len(app.replicas()) == 1, "two replicas stay without jobs")


def test_the_seconds_decide_and_jobs_where_there_are_none():
    policy = BySeconds(30.0)

    def replicas(jobs, seconds, queued=0.0):
        metrics = {"jobs": jobs, "seconds": seconds}
        config = SimpleNamespace(get_target_ongoing_requests=lambda: 8)
        return policy(SimpleNamespace(aggregated_metrics=metrics, total_queued_requests=queued, config=config))[0]

    assert replicas({}, {}) == 0
    assert replicas({"a": 40.0, "b": 20.0}, {"a": 45.0, "b": 30.0}) == 2.5
    assert replicas({"a": 40.0, "b": 20.0}, {"a": 45.0, "b": 0.0}) == 4.0, "one that has not been measured"
    assert replicas({"a": 2.0}, {"a": 3000.0}) == 2, "no more replicas than jobs"
    assert replicas({"a": 1.0}, {"a": 15.0}, queued=16.0) == 2.5


def test_replicas_ask_for_the_key_and_share_encoded_prompts():
    with redis() as store, application(model=str(MODEL), replicas="2", api_key="a key for tests", prompt_cache=store) as app:
        assert app.ask("GET", "/v1/jobs")[0] == 401
        assert app.ask("GET", "/metrics")[0] == 401
        app.headers = KEY
        assert app.ask("GET", "/v1/jobs")[0] == 200
        number = app.submit(steps=200)
        app.kill(app.place(number))
        assert app.finished(number)["status"] == "done", "the job is made again with its client's key"
        app.headers = {}
        assert app.ask("GET", f"/v1/jobs/{number}")[0] == 401
        app.headers = KEY
        if store is None:
            pytest.skip("redis-server is not installed")
        prompt, images = f"a rocket {time.time()}", set()

        def shared():
            images.add(app.image(1, prompt=prompt)[0])
            return app.metric("kiln_texts", 'source="store"')

        until(shared, "no replica has taken the text from the store")
        assert len(images) == 1
