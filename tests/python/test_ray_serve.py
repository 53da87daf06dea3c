"""The server on a Ray cluster: two replicas, one of which is killed while 32 clients have requests."""

import base64
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import MODEL

pytest.importorskip("ray.serve")
pytest.importorskip("aiohttp")
import ray  # noqa: E402
from ray import serve  # noqa: E402

import kiln  # noqa: E402
import kiln.ray  # noqa: E402

REQUEST = {"prompt": "a rocket", "steps": 4, "width": 64, "height": 64}


@pytest.fixture(scope="module")
def url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 300})
    serve.run(kiln.ray.app({"model": str(MODEL), "replicas": "2"}))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def ask(url, seed):
    start = time.monotonic()
    body = json.dumps({**REQUEST, "seed": seed}).encode()
    request = urllib.request.Request(f"{url}/sdapi/v1/txt2img", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        image = json.load(answer)["images"][0]
    return base64.b64decode(image), time.monotonic() - start


def test_the_routes_are_those_of_the_server(url):
    with urllib.request.urlopen(f"{url}/v1/capabilities?x=1", timeout=60) as answer:
        assert json.load(answer)["models"][0]["id"] == "emoji"
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{url}/v1/nothing", timeout=60)
    assert raised.value.code == 404


def test_no_request_is_lost_with_a_replica(url):
    expected = {seed: ask(url, seed)[0] for seed in range(4)}
    with ThreadPoolExecutor(32) as clients:
        asked = [clients.submit(ask, url, i % 4) for i in range(96)]
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
