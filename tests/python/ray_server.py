"""An application of Ray Serve on this machine, and plain requests to it."""

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import ray
from ray import serve

import kiln.ray

#: A job of a few steps.
JOB = {"prompt": "a rocket", "steps": 4, "width": 64, "height": 64}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def until(is_so, what, seconds=120):
    """Waits for a condition, whose value it returns."""
    end = time.monotonic() + seconds
    while True:
        found = is_so()
        if found:
            return found
        assert time.monotonic() < end, what
        time.sleep(0.05)


class App:
    """A client of the application."""

    def __init__(self, port):
        self.port = port
        #: Of every request.
        self.headers = {}

    def open(self, method, path, body=None, timeout=300):
        """A connection, and an answer whose body is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"content-type": "application/json", **self.headers})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None):
        """The status and the bytes of an answer."""
        connection, answer = self.open(method, path, body)
        with contextlib.closing(connection):
            return answer.status, answer.read()

    def json(self, method, path, body=None):
        """The status and the content of an answer."""
        status, content = self.ask(method, path, body)
        return status, json.loads(content)

    def submit(self, **fields):
        """The number of a new job."""
        status, job = self.json("POST", "/v1/jobs", {**JOB, **fields})
        assert status == 202, job
        return job["id"]

    def finished(self, number):
        """A job when it has ended."""

        def ended():
            status, job = self.json("GET", f"/v1/jobs/{number}")
            assert status == 200, job
            return job if job["finished"] else None

        return until(ended, f"{number} does not end")

    def place(self, number):
        """The replica that has a job; None while it waits for one."""
        keeper = ray.get_actor("kiln-jobs-default", namespace="kiln")
        place = ray.get(keeper.find.remote(number, self.headers.get("authorization", ""), False))
        return place and place.replica

    def kill(self, replica):
        """Ends the process of a replica by SIGKILL."""
        pid = serve.get_deployment_handle("KilnReplica", "default").pid.remote(replica=replica).result()
        os.kill(pid, signal.SIGKILL)

    def file(self, job):
        """The bytes of the first image of a job."""
        status, file = self.ask("GET", job["images"][0]["url"])
        assert status == 200 and file.startswith(b"\x89PNG"), (status, file[:200])
        return file

    def image(self, seed, **fields):
        """The bytes of an image by a route that waits, and the seconds that it took."""
        start = time.monotonic()
        status, answer = self.json("POST", "/sdapi/v1/txt2img", {**JOB, "seed": seed, **fields})
        assert status == 200, answer
        return base64.b64decode(answer["images"][0]), time.monotonic() - start

    def metrics(self):
        """The values of all metrics, by name and labels."""
        status, content = self.ask("GET", "/metrics")
        assert status == 200, content
        lines = [line for line in content.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name, label=""):
        """The sum of a metric over its labels, of which one can be asked for."""
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name and label in key)

    def replicas(self):
        """The replicas that answer."""
        return {key.split('replica="')[1].split('"')[0] for key in self.metrics() if key.startswith("kiln_queue_jobs")}


@contextlib.contextmanager
def application(**options):
    """A local cluster with an application."""
    port = free_port()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 300})
        serve.run(kiln.ray.app(options))
        yield App(port)
    finally:
        serve.shutdown()
        ray.shutdown()


@contextlib.contextmanager
def redis():
    """The address of a Redis, or None where `redis-server` is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    port = free_port()
    process = subprocess.Popen([program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)
