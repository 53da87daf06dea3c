"""Hostile and honest clients at once. The hostile ones share addresses, as clients do: images that are small as files
and large as pixels, beyond the limit and just within, long prompts and names, wrong bodies, bodies that stop before their end,
connections without requests, answers that are never read, jobs that are canceled at once, and as many long jobs as the queue takes.
A third address has jobs with the longest prompts, which stay when they are canceled, and large images that are canceled while they
are made.
The honest ones have an address each. They make images, list jobs and ask for /healthz, in a process of their own, so that they do
not wait for the hostile ones in this script.

No honest request waits for its answer for more than five seconds, none is refused, no honest job fails, and the process takes at
most a quarter of a memory limit more than when nothing ran, which is also the limit of its writable memory. A large image ends within
five seconds after it was canceled. Each kind of hostile request was sent and answered as it has to be.

Run: python3 tests/serve/soak.py target/release/kiln [--seconds 120] [--limit-mib 2048] [--longest 5] [--without many_jobs ..]
"""

import argparse
import base64
import collections
import concurrent.futures
import functools
import http.client
import json
import multiprocessing
import os
import random
import select
import socket
import struct
import threading
import time
import zlib

from served import Server

# One address for what holds connections and decoders, so that its own requests do not keep those of the other one from the queue.
HOLDS, ASKS, CANCELS = "127.0.0.2", "127.0.0.7", "127.0.0.8"
SIZE = {"width": 64, "height": 64}
# The options of the server. Long jobs fill the queue many times in a run, and end by their time.
OPTIONS = ["--max-seconds", "20", "--queue", "64"]
# How long connections are held that are idle, or whose answers are not read.
HELD = 5.0
# A job ends at most so many seconds after it was canceled.
CANCELED = 5.0
# An honest client has to get an image in so many seconds, on average, to call it served.
SECONDS_PER_IMAGE = 15


def png(width, height, channels):
    """A small PNG file of many pixels, all of one color; 0 channels are for one bit a pixel."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compressobj(9)
    row = bytes(1 + (width * channels or (width + 7) // 8))
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    depth, kind = (8, 2) if channels == 3 else (1, 0)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def gif(width, height):
    """A GIF file of 35 bytes with a canvas of many pixels."""
    canvas = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return b"GIF89a" + canvas + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\x00;"


class Client:
    """Requests from one address, one connection each, and what became of them."""

    def __init__(self, port, address, number, end):
        self.port, self.address, self.draw, self.end = port, address, random.Random(number), end
        self.counts, self.times, self.errors = collections.Counter(), [], []

    def runs(self):
        return time.monotonic() < self.end

    def rest(self, seconds):
        time.sleep(max(0.0, min(seconds, self.end - time.monotonic())))

    def connect(self, timeout):
        return socket.create_connection(("127.0.0.1", self.port), timeout, (self.address, 0))

    def request(self, method, path, body=None, timeout=60.0):
        """The status and the bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout, source_address=(self.address, 0))
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send(self, what, *request, timeout=90.0):
        """A request of which it does not matter how it ends; it is counted by its status."""
        try:
            status, body = self.request(*request, timeout=timeout)
        except TimeoutError:
            status, body = "no answer", b""
        except (OSError, http.client.HTTPException):
            status, body = "closed", b""
        if self.runs():
            self.counts[what, status] += 1
        return status, body

    def timed(self, what, *request):
        """A request of an honest client."""
        start = time.monotonic()
        status = None
        try:
            status, body = self.request(*request)
            return status, body
        finally:
            self.times.append((what, time.monotonic() - start))
            self.counts[what, status or "no answer"] += 1


# The files of hostile clients are made once.

@functools.cache
def bomb_files():
    return [png(60_000, 1000, 0), png(1, 60_000, 0), gif(7999, 7999), gif(65535, 65535)]


@functools.cache
def large_image_body():
    image = base64.b64encode(png(4096, 4096, 3)).decode()
    return json.dumps({"controlnet_module": "canny", "controlnet_input_images": [image]}).encode()


# Hostile clients. Each call is one or more requests.

def bomb(client):
    """Images beyond the limits, on every route that reads one."""
    image = client.draw.choice(bomb_files())
    text = base64.b64encode(image).decode()
    job = {"prompt": "a", "steps": 1, **(SIZE if client.draw.random() < 0.5 else {})}
    requests = [
        ("/v1/jobs", {**job, "init": text}),
        ("/v1/jobs", {**job, "init": text, "mask": text}),
        ("/sdapi/v1/img2img", {**job, "init_images": [text]}),
        ("/sdapi/v1/extra-single-image", {"image": text, "upscaling_resize": 1, "upscaler_1": "Lanczos"}),
        ("/controlnet/detect", {"controlnet_module": "canny", "controlnet_input_images": [text]}),
        ("/v1/upscale", image),
        ("/v1/settings", image),
    ]
    client.send("bomb", "POST", *client.draw.choice(requests))


def large_image(client):
    """The largest images that are allowed: all of their pixels are decoded."""
    client.send("large image", "POST", "/controlnet/detect", large_image_body())


def long_prompt(client):
    words = client.draw.choice([500, 2500, 5000, 50_000])
    text = client.draw.choice([" BREAK ".join(["a"] * (words // 75)), "a " * words, "(" * words, "a" * words])
    client.send("long prompt", "POST", "/v1/jobs", {"prompt": text, "steps": 1, **SIZE})
    client.rest(0.1)


def long_name(client):
    name = "k" * client.draw.choice([1000, 100_000, 3_000_000])
    body = client.draw.choice([{"prompt": "a", name: 1}, {"prompt": "a", "sampler": name}, {"prompt": "a", "model": name}])
    client.send("long name", "POST", client.draw.choice(["/v1/jobs", "/sdapi/v1/txt2img"]), body)


def wrong_body(client):
    bodies = [b"{", b"[" * 100_000, b'{"a":' * 50_000, os.urandom(1000), b'{"prompt": "' + b"a" * 4_000_000, b'{"steps": 1e999, "prompt": "a"}']
    path = client.draw.choice(["/v1/jobs", "/sdapi/v1/txt2img", "/v1/images/generations", "/v1/images/edits", "/v1/settings", "/v1/upscale"])
    client.send("wrong body", "POST", path, client.draw.choice(bodies))


def hold(client, what, requests, seconds):
    """Opens a connection for each of the requests, sends it, and counts how many the server has ended after some seconds."""
    poll, held = select.poll(), []
    for request in requests:
        if not client.runs():
            break
        try:
            connection = client.connect(10.0)
            held.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(request)
        except OSError:
            pass  # it is ended, which is seen below
    client.rest(seconds)
    numbers = {connection.fileno() for connection in held}
    for number in numbers:
        poll.register(number, select.POLLRDHUP)
    ended = len(poll.poll(0))
    client.counts[what, "held"] += len(held) - ended
    client.counts[what, "ended"] += ended
    for connection in held:
        connection.close()


def idle_connection(client):
    """Connections without requests, or with a part of one, more than a server has."""
    part = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    hold(client, "idle connection", [part[: 10 + i % 60] if i % 3 == 0 else b"" for i in range(1100)], HELD)


def unread_answer(client):
    """Requests whose answers are never read, twenty on each connection."""
    paths = [b"/v1/jobs", b"/v1/capabilities", b"/openapi.json", b"/metrics"] * 107
    hold(client, "unread answer", [(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") * 20 for path in paths], HELD)


def slow_body(client):
    """Bodies of which one byte does not come, until the server ends them."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    sizes = [256 << 10] * 255 + [60 << 20]
    hold(client, "slow body", (head % (size + 1) + bytes(size) for size in sizes), 20.0)


def canceled_job(client):
    status, body = client.send("canceled job", "POST", "/v1/jobs", {"prompt": "x" * 2000, "steps": 900, "priority": 100, **SIZE})
    if status == 202:
        client.rest(client.draw.random() * 0.2)
        client.send("cancel", "DELETE", f"/v1/jobs/{json.loads(body)['id']}")
    else:
        client.rest(0.1)


def finished_job(client):
    """Jobs that are kept with their prompts, of 40 KB each and nearly as many tokens as are allowed."""
    text = "international " * 2900
    status, body = client.send("finished job", "POST", "/v1/jobs", {"prompt": text, "negative_prompt": text, "steps": 1, **SIZE})
    if status == 202:
        client.send("cancel", "DELETE", f"/v1/jobs/{json.loads(body)['id']}")
    else:
        client.rest(0.1)


def large_job(client):
    """Large images that are canceled while they wait, in a step, or while they are decoded."""
    job = {"prompt": "a", "steps": client.draw.choice([1, 50]), "width": 1024, "height": 1024}
    status, body = client.send("large job", "POST", "/v1/jobs", job)
    if status != 202:
        return client.rest(0.2)
    path = f"/v1/jobs/{json.loads(body)['id']}"
    client.rest(client.draw.random() * 4)
    start = time.monotonic()
    client.send("cancel", "DELETE", path)
    while client.runs():
        status, body = client.request("GET", path)
        if status == 404 or json.loads(body)["finished"] is not None:
            took = time.monotonic() - start
            client.counts["large job, canceled", "in time" if took < CANCELED else f"after {took:.0f} s"] += 1
            return
        client.rest(0.05)


def many_jobs(client):
    status, _ = client.send("one of many jobs", "POST", "/v1/jobs", {"prompt": "a", "steps": 900, **SIZE})
    client.rest(0.02 if status == 202 else 0.5)


# Each kind with its address and how many clients it has.
KINDS = {
    bomb: (HOLDS, 2), large_image: (HOLDS, 32), idle_connection: (HOLDS, 1), unread_answer: (HOLDS, 1), slow_body: (HOLDS, 1),
    finished_job: (CANCELS, 2), large_job: (CANCELS, 1), long_prompt: (ASKS, 1), long_name: (ASKS, 1), wrong_body: (ASKS, 1), canceled_job: (ASKS, 2), many_jobs: (ASKS, 1),
}
# The answers that a kind has to get at least once. The others that it may get are those of every client which has used up its share.
ANSWERS = {
    "bomb": ({422}, {400}),
    "large image": ({200}, set()),
    "long prompt": ({400, 202}, set()),
    "long name": ({400}, {200, 404, 504}),  # unknown fields do nothing in one of the APIs
    "wrong body": ({400, 422}, {413}),
    "idle connection": ({"ended"}, {"held"}),
    "unread answer": ({"ended"}, {"held"}),
    "slow body": ({"held", "ended"}, set()),
    "canceled job": ({202}, set()),
    "cancel": ({200}, {404}),
    "one of many jobs": ({202, 429}, set()),
    "finished job": ({202}, set()),
    "large job": ({202}, set()),
    "large job, canceled": ({"in time"}, set()),
}
REFUSED = {429, 503, "closed"}


# Honest clients.

def probe(client):
    status, _ = client.timed("/healthz", "GET", "/healthz")
    assert status == 200, status
    client.rest(0.1)


def listing(client):
    status, body = client.timed("list of jobs", "GET", "/v1/jobs")
    assert status == 200 and "jobs" in json.loads(body), status
    client.rest(0.3)


def image(client):
    start = time.monotonic()
    job = {"prompt": "a red apple", "steps": 2, "seed": client.draw.randrange(9), **SIZE}
    status, body = client.timed("new job", "POST", "/v1/jobs", job)
    if status != 202:
        client.rest(0.5)
    assert status == 202, (status, body[:200])
    path = f"/v1/jobs/{json.loads(body)['id']}"
    while client.runs():
        status, body = client.timed("state of a job", "GET", path)
        assert status == 200, (status, body[:200])
        job = json.loads(body)
        if job["finished"] is not None:
            assert job["status"] == "done", job["error"]
            client.times.append(("image, made", time.monotonic() - start))
            return
        client.rest(0.05)


HONEST = [(probe, "127.0.0.3"), (listing, "127.0.0.4"), (image, "127.0.0.5"), (image, "127.0.0.6")]


def run(port, seconds, work):
    """Runs clients, each on a thread, in a process of their own. Returns their counts, times and errors."""
    end = time.monotonic() + seconds
    clients = [(one, Client(port, address, number, end)) for number, (one, address) in enumerate(work)]

    def loop(one, client):
        while client.runs():
            try:
                one(client)
            except (AssertionError, OSError, http.client.HTTPException) as error:
                client.errors.append(f"{one.__name__}: {error!r}")
                client.rest(0.5)

    threads = [threading.Thread(target=loop, args=item, daemon=True) for item in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    clients = [client for _, client in clients]
    counts = sum((client.counts for client in clients), collections.Counter())
    return counts, [time for client in clients for time in client.times], [error for client in clients for error in client.errors]


def peak(server):
    """The most bytes that the process has held."""
    with open(f"/proc/{server.process.pid}/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def by_kind(counts):
    kinds = {}
    for (what, status), count in sorted(counts.items(), key=str):
        kinds.setdefault(what, {})[status] = count
    return kinds


def longest(times):
    most = {}
    for what, seconds in times:
        most[what] = max(most.get(what, 0.0), seconds)
    return most


def report(hostile, honest, times):
    print("requests           answers")
    for what, statuses in [*by_kind(hostile).items(), *by_kind(honest).items()]:
        print(f"{what:18} " + ", ".join(f"{status}: {count}" for status, count in statuses.items()))
    print(f"\n{'honest requests':18} {'count':>6} {'half':>8} {'99 of 100':>10} {'longest':>8}")
    for what in longest(times):
        some = sorted(seconds for kind, seconds in times if kind == what)
        part = lambda p: some[min(len(some) - 1, int(p * len(some)))]
        print(f"{what:18} {len(some):6} {part(0.5):7.2f}s {part(0.99):9.2f}s {some[-1]:7.2f}s")


def check_hostile(counts, kinds):
    """Each kind was sent, answered as it has to be, and not otherwise."""
    seen = by_kind(counts)
    names = {kind.__name__.replace("_", " ") for kind in kinds}
    for what, (needed, others) in ANSWERS.items():
        if what.removeprefix("one of ").removesuffix(", canceled") in names or (what == "cancel" and "canceled job" in names):
            answers = set(seen.get(what, {}))
            assert needed <= answers, f"{what}: expected {needed}, found {answers}"
            assert answers <= needed | others | REFUSED, f"{what}: {answers}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--limit-mib", type=int, default=2048, help="the memory limit, of which the process takes a quarter more than idle")
    parser.add_argument("--longest", type=float, default=5, help="seconds that an honest client waits for an answer at most")
    parser.add_argument("--without", nargs="*", default=[], choices=[kind.__name__ for kind in KINDS], help="kinds that are left out")
    arguments = parser.parse_args()
    kinds = {kind: clients for kind, clients in KINDS.items() if kind.__name__ not in arguments.without}
    server = Server(arguments.program, *OPTIONS, limit=arguments.limit_mib << 20)
    try:
        while server.request("GET", "/readyz")[0] != 200:
            time.sleep(0.05)
        assert server.request("POST", "/sdapi/v1/txt2img", {"prompt": "a", "steps": 1, **SIZE})[0] == 200
        idle, files = peak(server), server.files()
        bomb_files(), large_image_body()  # before the time begins
        attack = [(kind, address) for kind, (address, count) in kinds.items() for _ in range(count)]
        with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            both = [pool.submit(run, server.port, arguments.seconds, work) for work in (attack, HONEST)]
            (hostile, _, faults), (honest, times, errors) = [one.result() for one in both]
        assert server.process.poll() is None, "the server has ended"
        taken = peak(server) - idle
        report(hostile, honest, times)
        print(f"\nmemory: {idle >> 20} MiB idle, at most {taken >> 20} MiB more; the limit is {arguments.limit_mib} MiB")
        assert not faults, faults[:5]
        assert not errors, (len(errors), errors[:5])
        check_hostile(hostile, kinds)
        late = {what: seconds for what, seconds in longest(times).items() if seconds > arguments.longest and what != "image, made"}
        assert not late, f"an honest client waited: {late}"
        made = sum(what == "image, made" for what, _ in times)
        assert made >= arguments.seconds / SECONDS_PER_IMAGE, f"{made} honest images were made"
        assert taken <= (arguments.limit_mib << 20) // 4, "the process takes too much memory"
        # What was held is given back.
        end = time.monotonic() + 30
        while server.files() > files + 4:
            assert time.monotonic() < end, f"{server.files()} files are open, {files} before"
            time.sleep(0.2)
        server.process.send_signal(15)
        server.stop()
        print("soak: passed")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
