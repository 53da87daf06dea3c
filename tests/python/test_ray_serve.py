"""The server on a Ray cluster: two replicas with two models, one of which is killed while 32 clients have requests."""

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import MODEL, ROOT

pytest.importorskip("ray.serve")
pytest.importorskip("aiohttp")
from ray import serve  # noqa: E402
from ray_server import JOB, application, until  # noqa: E402

import kiln  # noqa: E402
import kiln.ray  # noqa: E402

TINY = ROOT / "tests" / "fixtures" / "models" / "sd1"


@pytest.fixture(scope="module")
def app():
    with application(models=f"{MODEL},{TINY}", replicas="2") as app:
        until(lambda: len(app.replicas()) == 2, "two replicas do not answer")
        yield app


def events(answer):
    """The events of an answer, as they come."""
    name = None
    for line in answer:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


def test_the_routes_are_those_of_the_server(app):
    status, capabilities = app.json("GET", "/v1/capabilities?x=1")
    assert status == 200 and capabilities["models"][0]["id"] == "emoji"
    assert app.ask("GET", "/v1/nothing")[0] == 404
    assert app.ask("GET", "/")[1].startswith(b"<!")


def test_a_job_is_asked_of_the_replica_that_has_it(app):
    # The ingress may have heard of one replica's model before the other's.
    until(lambda: {app.submit(steps=1).split("-")[0] for _ in range(6)} == app.replicas(), "one replica has all jobs")
    numbers = [app.submit(seed=seed) for seed in range(12)]
    holders = {number.split("-")[0] for number in numbers}
    assert holders == app.replicas(), "both replicas have jobs"
    assert {job["id"] for job in app.json("GET", "/v1/jobs")[1]["jobs"]} >= set(numbers)
    for seed, number in enumerate(numbers):
        job = app.finished(number)
        status, file = app.ask("GET", job["images"][0]["url"])
        assert job["status"] == "done" and job["images"][0]["seed"] == seed
        assert status == 200 and file.startswith(b"\x89PNG")
        assert app.ask("DELETE", f"/v1/jobs/{number}")[0] in (200, 204)
        assert app.ask("GET", f"/v1/jobs/{number}")[0] == 404
    assert app.ask("GET", "/v1/jobs/lostlost-0123456789abcdef")[0] == 404


def test_events_come_while_the_job_runs(app):
    number = app.submit(steps=900)
    connection, answer = app.open("GET", f"/v1/jobs/{number}/events")
    with contextlib.closing(connection):
        assert answer.getheader("content-type").startswith("text/event-stream")
        heard = events(answer)
        name, step = next((name, data) for name, data in heard if name == "step")
        assert step["step"] < 900
        assert app.ask("DELETE", f"/v1/jobs/{number}")[0] in (200, 202, 204)
        assert [name for name, _ in heard][-1] == "done"


def test_a_client_that_goes_away_ends_its_job(app):
    def running():
        return app.metric("kiln_running_jobs") + app.metric("kiln_queue_jobs")

    with pytest.raises(TimeoutError):
        app.open("POST", "/sdapi/v1/txt2img", {**JOB, "steps": 900}, timeout=1)
    until(lambda: running() == 0, "the job of a client that went away runs on")


def test_a_replica_that_has_the_model_is_preferred(app):
    """At first both replicas have the first model."""
    holders = {"emoji": [], "sd1": []}

    def settled():
        for model, found in holders.items():
            number = app.submit(model=model, steps=1)
            assert app.finished(number)["model"] == model
            found.append(number.split("-")[0])
        last = [set(found[-5:]) for found in holders.values()]
        return len(holders["emoji"]) >= 5 and all(len(one) == 1 for one in last) and last[0] != last[1]

    until(settled, f"the models move between replicas: {holders}")


def test_no_request_is_lost_with_a_replica(app):
    expected = {seed: app.image(seed)[0] for seed in range(4)}
    with ThreadPoolExecutor(32) as clients:
        asked = [clients.submit(app.image, i % 4) for i in range(96)]
        while sum(one.done() for one in asked) < 16:
            time.sleep(0.01)
        pid = serve.get_deployment_handle("KilnReplica", "default").pid.remote().result()
        os.kill(pid, signal.SIGKILL)
        answers = [one.result() for one in asked]
    assert [image for image, _ in answers] == [expected[i % 4] for i in range(96)]
    times = sorted(seconds for _, seconds in answers)
    print(f"96 requests of 32 clients: median {times[48]:.2f} s, p99 {times[94]:.2f} s")


def test_options_are_checked():
    with pytest.raises(kiln.RequestError, match="`model` is not given"):
        kiln.ray.app({})
    with pytest.raises(kiln.RequestError, match="`replicas` is 'two'"):
        kiln.ray.app({"model": "a", "replicas": "two"})
    with pytest.raises(kiln.RequestError, match="`target_seconds` is 0"):
        kiln.ray.app({"model": "a", "target_seconds": "0"})
