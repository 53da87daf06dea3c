"""Requests that cost more than they look like: small images with large headers, long prompts and names, bodies that do not end. Each is
refused or ended, the server answers others meanwhile, and its memory stays bounded.

Run: python3 tests/serve/costs.py target/release/kiln
"""

import base64
import json
import signal
import socket
import struct
import sys
import threading
import time
import zlib

from served import Server

MIB = 1 << 20
JOB = dict(prompt="a red apple", width=64, height=64, steps=1, seed=1)
# The longest time in seconds that a probe may take while other requests are refused.
PROBE = 5


def gif(width, height):
    """A GIF of this size with a frame of one pixel, in 35 bytes."""
    frame = struct.pack("<HHHH", 0, 0, 1, 1)
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff," + frame + b"\0\x02\x02D\x01\0;"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows=b"\0", more=b""):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def text(image):
    return base64.b64encode(image).decode()


def peak(server):
    """The most bytes that the process has held."""
    with open(f"/proc/{server.process.pid}/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def ready(server):
    end = time.monotonic() + 60
    while server.request("GET", "/readyz")[0] != 200:
        assert time.monotonic() < end, "the server is not ready"
        time.sleep(0.05)


class Probes:
    """Asks for the health of the server for as long as it is entered."""

    def __init__(self, server):
        self.server, self.longest, self.ended = server, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ended.is_set():
            start = time.monotonic()
            assert self.server.request("GET", "/healthz", timeout=60)[0] == 200
            self.longest = max(self.longest, time.monotonic() - start)
            self.ended.wait(0.1)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        assert self.longest < PROBE, f"a probe took {self.longest:.1f} s"


def together(requests):
    """The statuses and bodies of requests that are made at the same time."""
    answers = [None] * len(requests)

    def one(i, request):
        answers[i] = request()

    threads = [threading.Thread(target=one, args=item) for item in enumerate(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def images(server):
    """Headers that name millions of pixels, on every route that takes an image."""
    before = peak(server)
    bomb = zlib.compress(bytes(64 * MIB), 9)
    huge = [gif(7999, 7999), gif(65535, 65535), png(8000, 8000), png(64_000_000, 1), png(1, 64_000_000)]
    profile = png(64, 48, (b"\0" + bytes(192)) * 48, chunk(b"iCCP", b"x\0\0" + bomb))
    requests = []
    for image in huge:
        init = text(image)
        jobs = [
            dict(init=init), dict(init=init, width=64, height=64), dict(init=text(gif(64, 64)), mask=init), dict(init=init, extend="top=64"),
            dict(controls=[dict(net="canny", image=init)]),
        ]
        requests += [("/v1/jobs", {"prompt": "a", **job}) for job in jobs]
        requests += [
            ("/v1/upscale", image),
            ("/v1/images/edits", {"prompt": "a", "image": f"data:image/png;base64,{init}"}),
            ("/sdapi/v1/img2img", {"prompt": "a", "init_images": [init], "width": 64, "height": 64}),
            ("/sdapi/v1/extra-single-image", {"image": init, "upscaler_1": "Lanczos"}),
            ("/controlnet/detect", {"controlnet_module": "canny", "controlnet_input_images": [init]}),
        ]
    requests.append(("/v1/jobs", {"prompt": "a", "init": text(gif(64, 64)), "width": 64, "height": 64, "extend": "top=16000,left=16000"}))
    with Probes(server):
        for start in range(0, len(requests), 16):
            some = requests[start : start + 16]
            answers = together([lambda at=at: server.request("POST", at[0], at[1], timeout=60) for at in some])
            for (path, _), (status, _, body) in zip(some, answers):
                assert 400 <= status < 500, (path, status, body[:200])
        answers = together([lambda: server.request("POST", "/v1/upscale?scale=1", profile) for _ in range(8)])
        assert all(status in (200, 422) for status, _, _ in answers), answers[0]
    # Eight decoders of small images, each with 16 MiB for what is no pixel.
    held = peak(server) - before
    assert held < 400 * MIB, f"{held >> 20} MiB for {len(requests)} refused images"
    print(f"images: {len(requests)} refused, {held >> 20} MiB")


def small_images(server, n):
    """Memory does not grow with the number of images, of which many are damaged."""
    whole = png(64, 48, (b"\0" + bytes(range(192))) * 48)

    def send(i):
        image = bytearray(whole)
        for j in range(i % 4):
            image[(i * 7919 + j * 104_729) % len(image)] = i * 31 % 256
        return server.request("POST", "/v1/upscale?scale=1", bytes(image))[0]

    for i in range(n // 4):
        send(i)
    before = server.memory()
    together([lambda k=k: [send(i) for i in range(k, n, 8)] for k in range(8)])
    grown = server.memory() - before
    assert grown < 128 * MIB, f"{grown >> 20} MiB more after {n} images"
    print(f"small images: {n}, {grown / MIB:.1f} MiB more")


def names(server):
    """Names of megabytes are compared with none, and answers do not repeat them."""
    long = "k" * 6_000_000
    bodies = [{**JOB, long: 1}, {**JOB, "sampler": long}, {**JOB, "scheduler": long}, {**JOB, "model": long}]
    with Probes(server):
        for status, _, body in together([lambda body=body: server.request("POST", "/v1/jobs", body) for body in bodies * 2]):
            assert status in (400, 404) and len(body) < 16 << 10, (status, len(body))
        nested = b'{"prompt":"a","sigmas":[' + b"1," * 4_000_000 + b"1]}"
        assert server.request("POST", "/v1/jobs", nested)[0] == 400
    print("names: refused")


def prompts(server):
    """Prompts beyond the limit are refused; the answer has both numbers."""
    for prompt in (" BREAK ".join(["a"] * 3000), "a " * 250_000, " AND ".join(["a"] * 200)):
        status, _, body = server.request("POST", "/v1/jobs", {**JOB, "prompt": prompt})
        message = json.loads(body)["error"]["message"]
        assert status == 400 and "3000" in message and len(message) < 300, (status, message)
    prompt = "a red apple, " * 400
    status, _, body = server.request("POST", "/v1/jobs", {**JOB, "prompt": prompt})
    assert status == 202, body
    job = json.loads(body)["id"]
    listed = next(one for one in json.loads(server.get("/v1/jobs"))["jobs"] if one["id"] == job)
    assert len(listed["request"]["prompt"]) < 1100
    assert json.loads(server.get(f"/v1/jobs/{job}"))["request"]["prompt"] == prompt
    server.request("DELETE", f"/v1/jobs/{job}")
    print("prompts: refused, and cut in the list")


def bodies(server, most):
    """Bodies that do not end have a bounded part of the memory, and small ones are read meanwhile."""
    before, open_ones = peak(server), []
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {most}\r\n\r\n".encode()
    part = b" " * (most - 1)

    def send():
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        open_ones.append(connection)
        try:
            connection.sendall(head + part)
        except OSError:
            pass  # it was refused

    together([send] * 12)
    time.sleep(0.5)
    refused = 0
    for connection in open_ones:
        connection.settimeout(0.2)
        try:
            answer = connection.recv(4096)
            assert b" 503 " in answer and b"retry-after" in answer.lower(), answer
            refused += 1
        except TimeoutError:
            pass
        except OSError:
            refused += 1
    assert 8 <= refused < 12, refused
    with Probes(server):
        assert server.request("POST", "/v1/jobs", {**JOB, "steps": 0})[0] == 400
    for connection in open_ones:
        connection.close()
    held = peak(server) - before
    assert held < 4 * most + 64 * MIB, f"{held >> 20} MiB"
    print(f"bodies: {refused} of 12 refused, {held >> 20} MiB")


def long_texts(program):
    """A text that takes minutes is ended by its time, by DELETE and by a second signal."""
    server = Server(program, "--max-tokens", "1000000", "--max-seconds", "2", "-t", "1")
    try:
        ready(server)
        job = {**JOB, "prompt": " BREAK ".join(["a"] * 12_000)}
        started = [json.loads(server.request("POST", "/v1/jobs", job)[2])["id"] for _ in range(2)]
        server.request("DELETE", f"/v1/jobs/{started[1]}")
        start = time.monotonic()
        ended = []
        for name in started:
            while True:
                found = json.loads(server.get(f"/v1/jobs/{name}"))
                if found["finished"]:
                    ended.append((found["status"], (found["error"] or {}).get("type")))
                    break
                assert time.monotonic() - start < 15, found["status"]
                time.sleep(0.05)
        assert ended == [("failed", "deadline_exceeded"), ("canceled", None)], ended
    finally:
        server.kill()
    server = Server(program, "--max-tokens", "1000000", "-t", "1")
    try:
        ready(server)
        name = json.loads(server.request("POST", "/v1/jobs", job)[2])["id"]
        while json.loads(server.get(f"/v1/jobs/{name}"))["status"] == "queued":
            time.sleep(0.02)
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert server.process.wait(timeout=15) == 0
    finally:
        server.kill()
    print("long texts: ended by time, cancellation and signals")


def main(program):
    server = Server(program, "--max-body", "8M", "-t", "1")
    try:
        ready(server)
        images(server)
        small_images(server, 1600)
        prompts(server)
        bodies(server, 8 * MIB)
    finally:
        server.kill()
    server = Server(program, "-t", "1")
    try:
        ready(server)
        names(server)
        server.stop()
    finally:
        server.kill()
    long_texts(program)


if __name__ == "__main__":
    main(sys.argv[1])
