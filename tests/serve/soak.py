"""Hostile and honest clients at once, each with an address of its own (127.0.0.2 and so on): the hostile ones send images that are
small as files and large as pixels, long prompts and names, connections without requests, requests whose answers are never read, jobs
that are canceled at once, and wrong bodies. The honest ones make images, list jobs and ask for /healthz.

No honest request for /healthz or the list of jobs waits for more than five seconds, no honest job fails, and the process takes at
most a quarter of a memory limit more than when nothing ran.

Run: python3 tests/serve/soak.py target/release/kiln [--seconds 120] [--limit-mib 2048] [--longest 5]
"""

import argparse
import base64
import http.client
import json
import os
import random
import socket
import struct
import threading
import time
import zlib

from served import Server

HOSTILE = "127.0.0.2"
SIZE = {"width": 64, "height": 64}
# Between two readings of the process's memory.
LOOK = 0.2


def png(width, height):
    """A small PNG file of many pixels, all of one color."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def gif(width, height):
    """A GIF file of 35 bytes with a canvas of many pixels."""
    canvas = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return b"GIF89a" + canvas + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\x00;"


class Client:
    """Requests from one address, one connection each."""

    def __init__(self, soak, address, number=0):
        self.soak, self.address, self.draw = soak, address, random.Random(number)

    def connect(self, timeout):
        return socket.create_connection(("127.0.0.1", self.soak.server.port), timeout, (self.address, 0))

    def request(self, method, path, body=None, timeout=60.0):
        """The status, 0 where there is no answer, and the bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.soak.server.port, timeout=timeout, source_address=(self.address, 0))
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send(self, what, *request, timeout=10.0):
        """A request of which it does not matter how it ends."""
        try:
            status, body = self.request(*request, timeout=timeout)
        except (OSError, http.client.HTTPException):
            status, body = 0, b""
        self.soak.count(what, status)
        return status, body


class Soak:
    def __init__(self, server, seconds):
        self.server, self.end = server, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.counts, self.times, self.errors = {}, {}, []

    def runs(self):
        return time.monotonic() < self.end

    def count(self, what, status):
        with self.lock:
            of_kind = self.counts.setdefault(what, {})
            of_kind[status] = of_kind.get(status, 0) + 1

    def took(self, what, seconds):
        with self.lock:
            self.times.setdefault(what, []).append(seconds)

    def loop(self, work, client):
        """Runs `work` until the end. An error of an honest client is one of the server."""
        while self.runs():
            try:
                work(client)
            except Exception as error:
                with self.lock:
                    self.errors.append(f"{work.__name__}: {error!r}")
                time.sleep(0.5)


# Hostile clients.

def bombs(client):
    wide, high, canvas = (base64.b64encode(file).decode() for file in (png(60_000, 1000), png(1, 60_000), gif(7999, 7999)))
    while client.soak.runs():
        image = client.draw.choice([wide, high, canvas])
        job = {"prompt": "a", "steps": 1, **(SIZE if client.draw.random() < 0.5 else {})}
        requests = [
            ("/v1/jobs", {**job, "init": image}),
            ("/v1/jobs", {**job, "init": image, "mask": image}),
            ("/sdapi/v1/img2img", {**job, "init_images": [image]}),
            ("/sdapi/v1/extra-single-image", {"image": image, "upscaling_resize": 1, "upscaler_1": "Lanczos"}),
            ("/controlnet/detect", {"controlnet_module": "canny", "controlnet_input_images": [image]}),
            ("/v1/upscale", base64.b64decode(image)),
            ("/v1/settings", base64.b64decode(image)),
        ]
        path, body = client.draw.choice(requests)
        client.send("bomb", "POST", path, body, timeout=30.0)


def long_prompts(client):
    words = client.draw.choice([500, 5000, 50_000])
    text = client.draw.choice([" BREAK ".join(["a"] * words), "a " * words, "(" * words, "a" * words])
    client.send("long prompt", "POST", "/v1/jobs", {"prompt": text, "steps": 1, **SIZE})
    time.sleep(0.1)


def long_names(client):
    name = "k" * client.draw.choice([1000, 100_000, 3_000_000])
    body = client.draw.choice([{"prompt": "a", name: 1}, {"prompt": "a", "sampler": name}, {"prompt": "a", "model": name}])
    client.send("long name", "POST", client.draw.choice(["/v1/jobs", "/sdapi/v1/txt2img", "/v1/images/generations"]), body)


def idle(client):
    """Connections without requests, or with a part of one, more than a server has."""
    held = []
    for i in range(1100):
        if not client.soak.runs():
            break
        try:
            held.append(client.connect(1.0))
            if i % 3 == 0:
                held[-1].sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"[: 10 + i % 60])
            client.soak.count("idle connection", "open")
        except OSError:
            client.soak.count("idle connection", 0)
    time.sleep(min(5.0, max(0.0, client.soak.end - time.monotonic())))
    for connection in held:
        connection.close()


def unread(client):
    """Requests whose answers are never read."""
    held = []
    for path in [b"/v1/jobs", b"/v1/capabilities", b"/openapi.json", b"/metrics"] * 100:
        if not client.soak.runs():
            break
        try:
            connection = client.connect(1.0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall((b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") * 20)
            held.append(connection)
            client.soak.count("unread answer", "open")
        except OSError:
            client.soak.count("unread answer", 0)
    time.sleep(min(5.0, max(0.0, client.soak.end - time.monotonic())))
    for connection in held:
        connection.close()


def canceled(client):
    status, body = client.send("canceled job", "POST", "/v1/jobs", {"prompt": "x" * 2000, "steps": 900, "priority": 100, **SIZE})
    if status == 202:
        time.sleep(client.draw.random() * 0.2)
        client.send("cancel", "DELETE", f"/v1/jobs/{json.loads(body)['id']}")
    else:
        time.sleep(0.1)


def wrong(client):
    bodies = [b"{", b"[" * 100_000, b'{"a":' * 50_000, os.urandom(1000), b'{"prompt": "' + b"a" * 4_000_000, b'{"steps": 1e999, "prompt": "a"}']
    path = client.draw.choice(["/v1/jobs", "/sdapi/v1/txt2img", "/v1/images/generations", "/v1/images/edits", "/v1/settings", "/v1/upscale"])
    client.send("wrong body", "POST", path, client.draw.choice(bodies))


# Honest clients.

def probes(client):
    start = time.monotonic()
    try:
        status, _ = client.request("GET", "/healthz")
        assert status == 200, status
    finally:
        client.soak.took("/healthz", time.monotonic() - start)
    client.soak.count("honest /healthz", status)
    time.sleep(0.1)


def listings(client):
    start = time.monotonic()
    try:
        status, body = client.request("GET", "/v1/jobs")
        assert status == 200 and "jobs" in json.loads(body), status
    finally:
        client.soak.took("list of jobs", time.monotonic() - start)
    client.soak.count("honest list", status)
    time.sleep(0.3)


def images(client):
    start = time.monotonic()
    status, body = client.request("POST", "/v1/jobs", {"prompt": "a red apple", "steps": 2, "seed": client.draw.randrange(9), **SIZE})
    client.soak.count("honest job", status)
    if status == 429:
        return time.sleep(0.5)
    assert status == 202, (status, body[:200])
    path = f"/v1/jobs/{json.loads(body)['id']}"
    while True:
        status, body = client.request("GET", path)
        assert status == 200, (status, body[:200])
        job = json.loads(body)
        if job["finished"] is not None:
            break
        if not client.soak.runs():
            return None
        time.sleep(0.05)
    assert job["status"] == "done", job["error"]
    client.soak.took("image", time.monotonic() - start)
    return None


def report(soak, idle_bytes, most, arguments):
    print(f"{'hostile requests':18} statuses (0: no answer)")
    for what, statuses in sorted(soak.counts.items()):
        print(f"{what:18} " + ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items(), key=str)))
    print(f"\n{'honest requests':18} {'count':>6} {'half':>8} {'99 of 100':>10} {'longest':>8}")
    for what, times in sorted(soak.times.items()):
        times = sorted(times)
        part = lambda p: times[min(len(times) - 1, int(p * len(times)))]
        print(f"{what:18} {len(times):6} {part(0.5):7.2f}s {part(0.99):9.2f}s {times[-1]:7.2f}s")
    print(f"\nmemory: {idle_bytes >> 20} MiB idle, at most {most >> 20} MiB; the limit is {arguments.limit_mib} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--limit-mib", type=int, default=2048, help="the memory limit of which the process takes a quarter more than idle")
    parser.add_argument("--longest", type=float, default=5, help="seconds that an honest client waits for /healthz and the list at most")
    arguments = parser.parse_args()
    server = Server(arguments.program, "--max-seconds", "20", "--queue", "64")
    try:
        while server.request("GET", "/readyz")[0] != 200:
            time.sleep(0.05)
        assert server.request("POST", "/sdapi/v1/txt2img", {"prompt": "a", "steps": 1, **SIZE})[0] == 200
        idle_bytes = most = server.memory()
        soak = Soak(server, arguments.seconds)
        hostile = [bombs, bombs, long_prompts, long_names, idle, unread, canceled, canceled, wrong]
        honest = [(probes, "127.0.0.3"), (listings, "127.0.0.4"), (images, "127.0.0.5"), (images, "127.0.0.6")]
        work = [(work, Client(soak, HOSTILE, i)) for i, work in enumerate(hostile)]
        work += [(work, Client(soak, address, i)) for i, (work, address) in enumerate(honest)]
        threads = [threading.Thread(target=soak.loop, args=one, daemon=True) for one in work]
        for thread in threads:
            thread.start()
        while soak.runs():
            assert server.process.poll() is None, "the server has ended"
            most = max(most, server.memory())
            time.sleep(LOOK)
        for thread in threads:
            thread.join(90)
        report(soak, idle_bytes, most, arguments)
        assert not soak.errors, soak.errors[:5]
        late = {what: max(soak.times.get(what, [0.0])) for what in ("/healthz", "list of jobs")}
        assert all(time <= arguments.longest for time in late.values()), f"an honest client waited: {late}"
        assert soak.times.get("image"), "no honest image was made"
        assert most - idle_bytes <= (arguments.limit_mib << 20) // 4, "the process takes too much memory"
        server.process.send_signal(15)
        server.stop()
        print("soak: passed")
    finally:
        server.kill()


main()
