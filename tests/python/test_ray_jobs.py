"""Jobs of `/v1/jobs` on a Ray cluster whose replicas are killed, or replaced while clients have jobs."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import MODEL

pytest.importorskip("ray.serve")
pytest.importorskip("aiohttp")
from ray import serve  # noqa: E402
from ray_server import JOB, application, until  # noqa: E402

import kiln.ray  # noqa: E402
from kiln._ray_serve.kept import Kept, repeatable  # noqa: E402
from kiln._ray_serve.messages import Question  # noqa: E402

#: Steps of a job that runs for some seconds.
LONG = 400


@pytest.fixture(scope="module")
def app():
    with application(model=str(MODEL), replicas="2") as app:
        yield app


def two(app):
    """Waits for two replicas, which it returns."""
    until(lambda: app.ask("GET", "/metrics")[0] == 200, "no replica answers")
    return until(lambda: len(found := app.replicas()) == 2 and found, "there are not two replicas")


def follow(app, number):
    """The names of the events of a job, and the job in the last one."""
    _, content = app.ask("GET", f"/v1/jobs/{number}/events")
    events = [event.split("\ndata: ") for event in content.decode().split("\n\n") if event.startswith("event: ")]
    return [name.removeprefix("event: ") for name, _ in events], json.loads(events[-1][1])


def test_jobs_survive_their_replica(app):
    two(app)
    jobs = [app.json("POST", "/v1/jobs", {**JOB, "steps": 60, "subseed_strength": 0.5})[1] for _ in range(12)]
    numbers = [job["id"] for job in jobs]
    victim = app.place(numbers[-1])
    held = [number for number in numbers if app.place(number) == victim]
    canceled = held.pop(1)
    app.ask("DELETE", f"/v1/jobs/{canceled}")
    with ThreadPoolExecutor(12) as clients:
        followed = {number: clients.submit(follow, app, number) for number in held}
        app.kill(victim)
        for number, events in followed.items():
            names, last = events.result()
            assert names[-1] == "done" and last["status"] == "done" and last["id"] == number, last
    assert app.metric("kiln_retried_jobs_total") >= 1 and app.metric("kiln_lost_jobs_total") == 0
    for job in jobs:
        if job["id"] != canceled:
            done, drawn = app.finished(job["id"]), job["request"]
            assert done["status"] == "done" and done["request"]["seed"] == drawn["seed"], done
            again = app.finished(app.submit(steps=60, subseed_strength=0.5, seed=drawn["seed"], subseed=drawn["subseed"]))
            assert app.file(done) == app.file(again), "a job has another image after its replica was lost"
    status, job = app.json("GET", f"/v1/jobs/{canceled}")
    assert status == 404 or job["status"] == "canceled", "a canceled job is made again"
    assert set(numbers) - {canceled} <= {job["id"] for job in app.json("GET", "/v1/jobs")[1]["jobs"]}


def test_images_that_were_lost_are_made_again(app):
    two(app)
    number = app.submit()
    job = app.finished(number)
    file, retried = app.file(job), app.metric("kiln_retried_jobs_total")
    time.sleep(4)  # the keeper hears of its end
    app.kill(app.place(number))
    until(lambda: app.place(number) is None, "the replica is not missed")
    assert app.metric("kiln_retried_jobs_total") == retried, "images are made before anybody asks for them"
    assert app.file(job) == file
    assert app.finished(number)["status"] == "done"


def test_a_job_that_ends_two_replicas_is_given_up(app):
    two(app)
    number = app.submit(steps=900, width=256, height=256)
    lost = []
    for _ in range(2):
        victim = until(lambda: app.place(number), "the job is not given to a replica")
        assert victim not in lost
        lost.append(victim)
        app.kill(victim)
        until(lambda victim=victim: app.place(number) != victim, "the replica is not missed")
    names, job = follow(app, number)
    assert names == ["done"] and (job["status"], job["error"]["type"]) == ("failed", "lost"), job
    assert all(replica in job["error"]["message"] for replica in lost) and "not tried a third time" in job["error"]["message"]
    assert app.json("GET", f"/v1/jobs/{number}")[1]["error"] == job["error"]
    assert not two(app) & set(lost)
    assert app.metric("kiln_lost_jobs_total") == 1 and app.place(number) is None
    assert app.ask("DELETE", f"/v1/jobs/{number}")[0] == 200
    assert app.ask("GET", f"/v1/jobs/{number}")[0] == 404


def test_a_rolling_restart_loses_nothing(app):
    """The application is deployed again while clients send jobs: all its replicas and the ingress are replaced."""
    before = two(app)
    end, images = threading.Event(), {}

    def client(number):
        made = 0
        while not end.is_set():
            seed = (number + made) % 4
            job = app.finished(app.submit(seed=seed))
            assert job["status"] == "done", job
            file = app.file(job)
            assert images.setdefault(seed, file) == file
            made += 1
        return made

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(client, number) for number in range(8)]
        try:
            until(lambda: len(images) == 4, "no images are made")
            waiting = [app.submit(steps=LONG, seed=1) for _ in range(4)]
            serve.run(kiln.ray.app({"model": str(MODEL), "replicas": "2"}))
            until(lambda: not before & app.replicas(), "the replicas are not replaced")
            two(app)
        finally:
            end.set()
        assert sum(one.result() for one in running) > 16
    assert {app.finished(number)["status"] for number in waiting} == {"done"}
    assert app.metric("kiln_lost_jobs_total") == 1, "by the test before this one"


def test_the_repeated_request_has_what_was_drawn():
    question = Question("POST", "/v1/jobs", [("authorization", "Bearer a")], b'{"prompt": "a", "seed": -1, "variation_seed": -1}')
    again = repeatable(question, {"id": "a-1", "request": {"seed": 7, "subseed": 8}})
    assert json.loads(again.body) == {"prompt": "a", "seed": 7, "subseed": 8}
    assert again.authorization == "Bearer a" and ("kiln-job", "a-1") in again.headers


def test_planned_ends_count_for_nothing():
    job = Kept("a-1", Question("POST", "/v1/jobs", [], b"{}"), "", "", {}, "a")
    for replica in "abcd":
        job.place(replica)
        job.leave(is_planned=True)
        assert job.waits and job.error is None
    job.place("e")
    job.leave(is_planned=False)
    assert job.waits and job.seen()["status"] == "queued"
    job.place("f")
    job.finished = 1.0
    job.leave(is_planned=False)
    assert job.error is None, "it had ended before its replica"
    job.begin_again()
    job.place("g")
    job.leave(is_planned=False)
    assert not job.waits and job.error[1] == "lost" and "e and g" in job.error[0]
