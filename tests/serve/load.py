"""Many clients at once: mixed sizes, steps, samplers and cancels. No error but 429, flat memory, and each image has the bits of
`kiln txt2img`.

Run: python3 tests/serve/load.py target/release/kiln MINUTES [CLIENTS]
"""

import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import zlib

from served import MODEL, Server

PROMPTS = ["a red apple", "a boat", "a green pear", "a smiling face"]
SIZES = [(64, 64), (64, 96), (96, 64)]
STEPS = [2, 4, 8, 16]
SAMPLERS = ["euler", "euler_a", "dpmpp_2m"]
# Of so many requests one is canceled, and one is sent to AUTOMATIC1111's route by a client that goes away.
CANCEL, LEAVE = 0.15, 0.05
# What the process may grow by after the first tenth of the time.
GROWTH = 64 << 20


def pixels(png):
    """The decompressed rows of a PNG file, which depend on its pixels alone."""
    place, data = 8, b""
    while place < len(png):
        length = int.from_bytes(png[place:place + 4], "big")
        if png[place + 4:place + 8] == b"IDAT":
            data += png[place + 8:place + 8 + length]
        place += 12 + length
    return zlib.decompress(data)


class Load:
    def __init__(self, server, end):
        self.server, self.end = server, end
        self.lock = threading.Lock()
        self.made, self.seconds, self.counts, self.errors = {}, [], {}, []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def client(self, number):
        draw = random.Random(number)
        while time.monotonic() < self.end and not self.errors:
            width, height = draw.choice(SIZES)
            job = dict(prompt=draw.choice(PROMPTS), width=width, height=height, steps=draw.choice(STEPS),
                       sampler=draw.choice(SAMPLERS), seed=draw.randrange(2))
            try:
                chance = draw.random()
                if chance < LEAVE:
                    self.leave(job)
                else:
                    self.run(job, chance < LEAVE + CANCEL, draw)
            except Exception as error:  # all threads end, and the script fails
                with self.lock:
                    self.errors.append(f"client {number}: {error!r}")

    def leave(self, job):
        """Asks AUTOMATIC1111's route, and goes away before the answer."""
        try:
            self.server.request("POST", "/sdapi/v1/txt2img", {**job, "sampler_name": "Euler a", "steps": 200}, timeout=0.2)
        except TimeoutError:
            self.count("left")

    def run(self, job, cancels, draw):
        start = time.monotonic()
        while True:
            status, headers, body = self.server.request("POST", "/v1/jobs", job)
            if status != 429:
                break
            self.count("429")
            time.sleep(min(float(headers["retry-after"]), 1.0))
        assert status == 202, (status, body)
        path = f"/v1/jobs/{json.loads(body)['id']}"
        if cancels:
            time.sleep(draw.random() * 0.2)
            self.server.request("DELETE", path)
        # The events end with the job.
        status, _, events = self.server.request("GET", path + "/events")
        if status == 404 and cancels:
            return self.count("canceled")
        assert status == 200, (status, events)
        done = json.loads(events.decode().rsplit("event: done\ndata: ", 1)[1])
        if cancels and done["status"] == "canceled":
            return self.count("canceled")
        assert done["status"] == "done", done
        status, _, png = self.server.request("GET", done["images"][0]["url"])
        if status == 404 and cancels:
            return self.count("canceled")
        assert status == 200, (status, png)
        with self.lock:
            self.seconds.append(time.monotonic() - start)
            known = self.made.setdefault(json.dumps(job, sort_keys=True), pixels(png))
        assert known == pixels(png), f"other bits for {job}"
        self.server.request("DELETE", path)
        self.count("done")


def check(program, made):
    """Compares each image with that of a run of its own."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = pathlib.Path(folder, "jobs.jsonl")
        lines = [{**json.loads(job), "output": f"{i}.png"} for i, job in enumerate(made)]
        jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
        # One image of each kind by itself, and all of them by one call.
        subprocess.run([program, "batch", str(jobs), "-m", MODEL, "-o", folder, "--batch-size", "1"], check=True, capture_output=True)
        for i, png in enumerate(made.values()):
            assert pixels(pathlib.Path(folder, f"{i}.png").read_bytes()) == png, f"other bits than `kiln batch` for {lines[i]}"
        for i in range(0, len(made), max(1, len(made) // 8)):
            job = json.loads(list(made)[i])
            flags = [part for name, value in job.items() if name != "prompt" for part in (f"--{name}", str(value))]
            image = pathlib.Path(folder, f"alone-{i}.png")
            subprocess.run([program, "txt2img", job["prompt"], "-m", MODEL, "-o", str(image), *flags], check=True, capture_output=True)
            assert pixels(image.read_bytes()) == list(made.values())[i], f"other bits than `kiln txt2img` for {job}"


def main(program, minutes, clients):
    server = Server(program, "--max-batch", "4", "--queue", "48")
    try:
        while server.request("GET", "/readyz")[0] != 200:
            time.sleep(0.05)
        begin = time.monotonic()
        load = Load(server, begin + 60 * minutes)
        threads = [threading.Thread(target=load.client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        memory = []
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(1.0, 6 * minutes))
            memory.append(server.memory())
        assert not load.errors, load.errors[:3]
        early = max(memory[: max(1, len(memory) // 10)])
        late = max(memory[-max(1, len(memory) // 10):])
        seconds = sorted(load.seconds)
        part = lambda p: seconds[min(len(seconds) - 1, int(p * len(seconds)))]
        took = time.monotonic() - begin
        print(f"{took:.0f} s, {clients} clients: {load.counts}; {len(seconds) / took:.1f} images/s, "
              f"p50 {part(0.5):.2f} s, p99 {part(0.99):.2f} s")
        print(f"memory: {early >> 20} MiB after a tenth of the time, {late >> 20} MiB at the end; {server.files()} open files")
        assert late <= early + GROWTH, "the memory grows"
        assert server.metric("kiln_running_jobs") == 0 and server.metric("kiln_queue_jobs") == 0
        server.stop()
    finally:
        server.kill()
    check(program, load.made)
    print(f"{len(load.made)} different images: the bits of single runs")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 64)
