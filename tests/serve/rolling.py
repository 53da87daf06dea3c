"""A rolling restart of two servers behind a balancer, as Kubernetes does it, while clients have jobs: no job that was accepted and no image is
lost, and no request fails.

The balancer is one of connections, as a Service is: a new connection goes to a server that takes part, and stays there. A server that has to end
first gets no new connections, then SIGTERM. It finishes its jobs, answers on the connections that it has, and ends with code 0.
A client keeps its connection for a job: it sends it, follows its events, and reads the image.

Run: python3 tests/serve/rolling.py target/release/kiln [ROUNDS [CLIENTS]]
"""

import base64
import http.client
import json
import random
import socket
import sys
import threading
import time

from load import pixels
from served import Server

JOB = {"prompt": "a red apple", "width": 64, "height": 64, "steps": 24}
#: Seconds between the end of new connections and SIGTERM, for which the pod sleeps.
SLEEP = 2.0


class Balancer:
    """Passes bytes between a client and one of the servers."""

    def __init__(self):
        self.ports = []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.socket.accept()
            server = socket.create_connection(("127.0.0.1", random.choice(self.ports)))
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=ends, daemon=True).start()

    @staticmethod
    def copy(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Clients:
    def __init__(self, port):
        self.port, self.end = port, threading.Event()
        self.lock, self.made, self.errors = threading.Lock(), {}, []
        self.jobs = self.answers = self.refused = 0

    def run(self, number):
        draw = random.Random(number)
        while not self.end.is_set() and not self.errors:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            try:
                job = {**JOB, "seed": draw.randrange(4)}
                (self.job if number % 2 else self.answer)(connection, job)
            except Exception as error:  # all threads end, and the script fails
                self.errors.append(f"client {number}: {error!r}")
            finally:
                connection.close()

    def ask(self, connection, method, path, body=None):
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, answer.read()

    def job(self, connection, job):
        """A job of Kiln's own API, on one connection."""
        status, body = self.ask(connection, "POST", "/v1/jobs", job)
        if status == 503:  # the server ends, and has not accepted the job
            self.refused += 1
            return
        assert status == 202, (status, body)
        path = f"/v1/jobs/{json.loads(body)['id']}"
        status, events = self.ask(connection, "GET", f"{path}/events")
        assert status == 200, (status, events)
        done = json.loads(events.decode().rsplit("event: done\ndata: ", 1)[1])
        assert done["status"] == "done", done
        status, png = self.ask(connection, "GET", done["images"][0]["url"])
        assert status == 200, (status, png)
        self.compare(job, png)
        self.jobs += 1

    def answer(self, connection, job):
        """A route whose answer has the image."""
        status, body = self.ask(connection, "POST", "/sdapi/v1/txt2img", job)
        if status == 503:
            self.refused += 1
            return
        assert status == 200, (status, body)
        self.compare(job, base64.b64decode(json.loads(body)["images"][0]))
        self.answers += 1

    def compare(self, job, png):
        with self.lock:
            kind = (job["seed"], threading.current_thread().name.startswith("job"))
            assert self.made.setdefault(kind, pixels(png)) == pixels(png), f"other bits for {job}"


def start(program):
    server = Server(program)
    while server.request("GET", "/readyz")[0] != 200:
        time.sleep(0.05)
    return server


def main(program, rounds, count):
    balancer = Balancer()
    servers = [start(program) for _ in range(2)]
    balancer.ports = [server.port for server in servers]
    clients = Clients(balancer.port)
    names = [("job" if number % 2 else "answer") + str(number) for number in range(count)]
    threads = [threading.Thread(target=clients.run, args=(number,), name=name) for number, name in enumerate(names)]
    try:
        for thread in threads:
            thread.start()
        for turn in range(2 * rounds):
            time.sleep(2)
            place = turn % 2
            old = servers[place]
            balancer.ports = [servers[1 - place].port]
            time.sleep(SLEEP)
            held = old.metric("kiln_running_jobs") + old.metric("kiln_queue_jobs")
            begin = time.monotonic()
            old.stop()
            print(f"server {place} had {held:.0f} jobs, and has ended after {time.monotonic() - begin:.1f} s")
            servers[place] = start(program)
            balancer.ports = [server.port for server in servers]
        time.sleep(2)
    finally:
        clients.end.set()
        for thread in threads:
            thread.join()
        for server in servers:
            server.kill()
    assert not clients.errors, clients.errors[:3]
    assert clients.jobs and clients.answers, "the clients have made nothing"
    print(f"{2 * rounds} restarts, {count} clients: {clients.jobs} jobs and {clients.answers} answers with the right images, "
          f"{clients.refused} requests refused before they were accepted and sent again, no errors")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2, int(sys.argv[3]) if len(sys.argv) > 3 else 24)
