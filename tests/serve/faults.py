"""What goes wrong around a server: clients that are killed or slow, huge and malformed bodies, wrong keys, a lost Redis, and a server
that is killed. Everything is answered or cut, and nothing leaks.

Run: python3 tests/serve/faults.py target/release/kiln
"""

import base64
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from served import Server

JOB = dict(prompt="a red apple", width=64, height=64, steps=4, seed=1)
LONG = {**JOB, "steps": 900}
KEY = "a key for tests"
BEARER = {"authorization": f"Bearer {KEY}"}


def until(what, is_so, seconds=30):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def head(path, length, more=""):
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def killed_clients(server):
    """Clients that die while they wait end their jobs."""
    script = (
        "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]));"
        "c.request('POST', '/sdapi/v1/txt2img', sys.argv[2]); c.getresponse()"
    )
    body = json.dumps({**LONG, "sampler_name": "Euler a"})
    clients = [subprocess.Popen([sys.executable, "-c", script, str(server.port), body]) for _ in range(4)]
    until("the jobs do not run", lambda: server.metric("kiln_running_jobs") + server.metric("kiln_queue_jobs") >= 4)
    for client in clients:
        client.kill()
        client.wait()
    until("jobs of killed clients run on", lambda: server.metric("kiln_running_jobs") + server.metric("kiln_queue_jobs") == 0)


def slow_clients(server):
    """Clients that send their heads or bodies byte by byte are cut, and keep no one out."""
    slow = []
    for i in range(64):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(head("/v1/jobs", 1000) if i % 2 else b"GET /healthz HTTP/1.1\r\nHost: ")
        slow.append(connection)
    start = time.monotonic()
    assert server.request("GET", "/healthz")[0] == 200 and time.monotonic() - start < 2
    cut = 0
    for connection in slow[::2]:
        connection.settimeout(30)
        try:
            cut += connection.recv(4096) == b"" or True
        except TimeoutError:
            raise AssertionError("a head may take for ever")
    assert cut == 32 and time.monotonic() - start < 40
    for connection in slow:
        connection.close()


def large_bodies(server):
    """A body of 100 MB is refused before it is read, and one without a length when it is too long."""
    before = server.memory()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head("/v1/jobs", 100 << 20))
    connection.settimeout(10)
    assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    connection.close()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(b"POST /v1/settings HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.settimeout(30)
    answer = b""
    try:
        for _ in range(100):
            connection.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
        answer = connection.recv(4096)
    except (ConnectionError, TimeoutError):
        answer = answer or b" 413 "  # cut while it was sent
    assert b" 413 " in answer, answer
    connection.close()
    until("large bodies stay in memory", lambda: server.memory() < before + (160 << 20))


def malformed(server):
    """Bodies that are no JSON or no images, and heads that are no HTTP: an answer from 400 to 499, or the connection is cut."""
    image = base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(200)).decode()
    huge = base64.b64encode(bomb()).decode()
    bodies = [b"", b"{", b"[]", b"null", b"{\"prompt\": 1}", b"\xff\xfe", b"[" * 100_000, b"{\"a\":" * 50_000, b"{\"prompt\": \"\\ud800\"}",
              {**JOB, "init": image}, {**JOB, "init": huge}, {**JOB, "steps": 1e300}, {**JOB, "width": -8}, {**JOB, "seed": "x"},
              {**JOB, "controls": [{"net": "../../etc/passwd", "image": image}]}, {**JOB, "init": "http://127.0.0.1/"}]
    routes = ["/v1/jobs", "/v1/images/generations", "/sdapi/v1/txt2img", "/sdapi/v1/img2img", "/sdapi/v1/png-info",
              "/sdapi/v1/extra-single-image", "/sdapi/v1/extra-batch-images", "/controlnet/detect", "/v1/settings"]
    for route in routes:
        for body in bodies:
            if body in (b"{\"prompt\": \"\\ud800\"}",) and route == "/v1/settings":
                continue
            status, _, answer = server.request("POST", route, body)
            asks_nothing = route.startswith("/sdapi") and status == 200  # AUTOMATIC1111 has a default for every field
            assert 400 <= status < 500 or asks_nothing, (route, body if len(str(body)) < 200 else str(body)[:200], status, answer[:300])
    for form in [b"--x\r\n", b"--x\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\nno image\r\n--x--\r\n", os.urandom(1000)]:
        for route in ["/v1/images/edits", "/v1/images/variations"]:
            status, _, answer = server.request("POST", route, form, {"content-type": "multipart/form-data; boundary=x"})
            assert 400 <= status < 500, (route, status, answer)
    for raw in [b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 1000, os.urandom(4096), b"GET /" + b"a" * 100_000]:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.settimeout(20)
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
        connection.close()


def bomb():
    """A small PNG file of 30,000 by 30,000 pixels."""
    import struct
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    side = 30_000
    rows = zlib.compressobj(9)
    row = bytes(1 + side * 3)
    data = b"".join(rows.compress(row) for _ in range(200)) + rows.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def wrong_keys(program):
    """Without a key, and with a wrong one, there is no answer but 401."""
    server = Server(program, "--api-key", KEY, "--api-auth", "ann:secret")
    try:
        good = base64.b64encode(b"ann:secret").decode()
        wrong = base64.b64encode(b"ann:secret2").decode()
        for headers in [{}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": f"Bearer {KEY}x"},
                        {"authorization": f"Basic {wrong}"}, {"authorization": "Basic ???"}]:
            for method, path in [("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/metrics"), ("GET", "/nothing")]:
                assert server.request(method, path, b"" if method == "POST" else None, headers)[0] == 401, (headers, path)
        for headers in [BEARER, {"authorization": f"Basic {good}"}]:
            assert server.request("GET", "/v1/jobs", None, headers)[0] == 200, headers
        assert server.request("GET", "/healthz")[0] == 200
        server.stop()
    finally:
        server.kill()


def killed_server(program):
    """A server that is killed leaves no file that is half written."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, "--output", folder, "--max-batch", "4")
        try:
            for seed in range(64):
                status, _, body = server.request("POST", "/v1/jobs", {**JOB, "width": 256, "height": 256, "steps": 1, "seed": seed})
                assert status == 202, body
            until("no image is written", lambda: len(list(pathlib.Path(folder).glob("*.png"))) >= 3, 120)
        finally:
            server.kill()
        images = list(pathlib.Path(folder).glob("*.png"))
        for image in images:
            data = image.read_bytes()
            assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82"), image
        print(f"  {len(images)} images were written before the kill")


def lost_redis(program):
    """Jobs are made while Redis is there, when it was killed, and when it is back."""
    redis = shutil.which("redis-server") or shutil.which("valkey-server")
    if redis is None:
        print("  skipped: no redis-server is installed")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = lambda: subprocess.Popen([redis, "--port", str(port), "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL)
    store = start()
    server = None
    try:
        until("redis does not answer", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        server = Server(program, "--prompt-cache", f"redis://127.0.0.1:{port}")

        def image(prompt):
            status, _, body = server.request("POST", "/sdapi/v1/txt2img", {**JOB, "prompt": prompt})
            assert status == 200, body
            return json.loads(body)["images"]

        first = image("a red apple")
        store.kill()
        store.wait()
        begin = time.monotonic()
        assert image("a red apple") == first
        lost = [image(f"a boat {i}") for i in range(4)]
        assert time.monotonic() - begin < 60
        store = start()
        assert [image(f"a boat {i}") for i in range(4)] == lost
        server.stop()
    finally:
        store.kill()
        if server:
            server.kill()


def main(program):
    server = Server(program)
    try:
        until("the server is not ready", lambda: server.request("GET", "/readyz")[0] == 200)
        assert server.request("POST", "/sdapi/v1/txt2img", JOB)[0] == 200
        files = server.files()
        for check in [killed_clients, slow_clients, large_bodies, malformed]:
            print(check.__name__, flush=True)
            check(server)
            assert server.request("POST", "/sdapi/v1/txt2img", JOB)[0] == 200, check.__name__
        until("connections stay open", lambda: server.files() <= files + 2, 90)
        left = [path for path in pathlib.Path(tempfile.gettempdir()).glob("kiln-serve-*/*") if path.name != "lock"]
        assert not left, f"input images stay on the disk: {left}"
        server.stop()
        assert not list(pathlib.Path(tempfile.gettempdir()).glob("kiln-serve-*")), "the server's folder stays on the disk"
    finally:
        server.kill()
    for check in [wrong_keys, killed_server, lost_redis]:
        print(check.__name__, flush=True)
        check(program)
    print("faults: passed")


main(sys.argv[1])
