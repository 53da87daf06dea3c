"""Many clients of `/v1/jobs` on a Ray cluster with two replicas, of which one is killed now and then. Every job that was accepted ends with
the bytes that its seed has without kills.

Run, where the Python module and Ray are installed (`KILN_RAY=1 scripts/python-tests.sh`):

    target/python/bin/python tests/python/ray_load.py [MINUTES [CLIENTS [SECONDS BETWEEN KILLS]]]
"""

import collections
import contextlib
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ray_server import JOB, application, until  # noqa: E402

MODEL = Path(__file__).resolve().parents[2] / "models" / "emoji"
#: The images that clients ask for: seeds and steps.
SEEDS, STEPS = range(16), (2, 4, 8)
#: Some jobs have no seed. Their image is that of the seed which the accepted job names.
UNSEEDED = 0.1


class Load:
    def __init__(self, app, end):
        self.app, self.end = app, end
        self.lock, self.counts = threading.Lock(), collections.Counter()
        self.seconds, self.errors, self.made = [], [], {}

    def client(self, number):
        draw = random.Random(number)
        while time.monotonic() < self.end:
            fields = {"steps": draw.choice(STEPS)}
            if draw.random() >= UNSEEDED:
                fields["seed"] = draw.choice(SEEDS)
            begin = time.monotonic()
            try:
                self.job(fields, begin)
            except Exception as error:
                with self.lock:
                    self.errors.append(f"client {number}, after {time.monotonic() - begin:.1f} s: {error!r}")

    def job(self, fields, begin):
        status, job = self.app.json("POST", "/v1/jobs", {**JOB, **fields})
        if status in (429, 503):
            return self.count(f"refused with {status}")
        assert status == 202, (status, job)
        self.count("accepted")
        done = self.followed(job["id"])
        if done["status"] == "failed" and done["error"]["type"] == "lost":
            return self.count("lost with two replicas")
        assert done["status"] == "done", done
        file = self.app.file(done)
        with self.lock:
            self.seconds.append(time.monotonic() - begin)
            known = self.made.setdefault((job["request"]["seed"], fields["steps"]), file)
        assert known == file, f"other bytes for {fields}"
        self.app.ask("DELETE", f"/v1/jobs/{job['id']}")
        self.count("done")

    def followed(self, number):
        """The job in its last event. A stream of events that ends early is asked for again."""
        while True:
            status, content = self.app.ask("GET", f"/v1/jobs/{number}/events")
            assert status == 200, (status, content)
            if b"event: done\n" in content:
                return json.loads(content.decode().rsplit("event: done\ndata: ", 1)[1])
            self.count("streams that ended early")

    def count(self, what):
        with self.lock:
            self.counts[what] += 1


def kill_now_and_then(app, end, pause):
    """Kills a replica, waits for the next one, and so on. The kills."""
    kills = 0
    while time.monotonic() + pause < end:
        time.sleep(pause)
        with contextlib.suppress(AssertionError):
            replicas = sorted(until(lambda: len(found := app.replicas()) == 2 and found, "there are not two replicas"))
            app.kill(random.choice(replicas))
            kills += 1
            print(f"{time.strftime('%H:%M:%S')} a replica is killed", flush=True)
    return kills


def main(minutes, clients, pause):
    with application(model=str(MODEL), replicas="2") as app:
        until(lambda: len(app.replicas()) == 2, "there are not two replicas")
        begin = time.monotonic()
        load = Load(app, begin + 60 * minutes)
        with ThreadPoolExecutor(clients + 1) as pool:
            killer = pool.submit(kill_now_and_then, app, load.end, pause)
            for number in range(clients):
                pool.submit(load.client, number)
        took, kills = time.monotonic() - begin, killer.result()
        until(lambda: len(app.replicas()) == 2, "there are not two replicas")
        seconds = sorted(load.seconds)
        part = lambda p: seconds[min(len(seconds) - 1, int(p * len(seconds)))]
        print(f"{took:.0f} s, {clients} clients, two replicas, {kills} kills: {dict(load.counts)}")
        print(f"{len(seconds) / took:.1f} images/s, p50 {part(0.5):.2f} s, p95 {part(0.95):.2f} s, p99 {part(0.99):.2f} s, "
              f"most {seconds[-1]:.2f} s")
        print(f"{app.metric('kiln_retried_jobs_total'):.0f} jobs were made again, {app.metric('kiln_lost_jobs_total'):.0f} lost twice, "
              f"{len(load.errors)} errors {load.errors[:3]}")
        for (seed, steps), file in load.made.items():
            job = app.finished(app.submit(seed=seed, steps=steps))
            assert app.file(job) == file, f"other bytes than without kills for seed {seed}"
        print(f"{len(load.made)} different images: the bytes that they have without kills")
        assert not load.errors
        assert load.counts["accepted"] == load.counts["done"] + load.counts["lost with two replicas"]


if __name__ == "__main__":
    given = [float(value) for value in sys.argv[1:]]
    minutes, clients, pause = given + [10.0, 200.0, 45.0][len(given):]
    main(minutes, int(clients), pause)
