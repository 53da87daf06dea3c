"""Prometheus reads a server's metrics by the configuration of assets/observability, and the expressions of the dashboard have values.

Without `prometheus` (of Debian's packages) only the names in the expressions are compared with those of the server.

Run: python3 tests/serve/metrics.py target/release/kiln
"""

import json
import math
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from served import Server

FOLDER = pathlib.Path("assets/observability")
CONFIG = FOLDER / "prometheus.yml"
DASHBOARD = FOLDER / "grafana-dashboard.json"
TARGET, INTERVAL = "127.0.0.1:7860", "scrape_interval: 15s"
#: What a histogram adds to its name.
SERIES = ("_bucket", "_sum", "_count")
#: The longest time until all expressions have values.
SECONDS = 90


def expressions():
    """The expressions of the dashboard, by their panels."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def exported(server):
    """The names of the series that the server exports."""
    lines = server.get("/metrics").decode().splitlines()
    return {re.split("[{ ]", line)[0] for line in lines if not line.startswith("#")}


def compare_names(names):
    """Every metric of the dashboard is exported, and every metric that is exported has its place there."""
    used = {name for _, expression in expressions() for name in re.findall(r"\bkiln_\w+", expression)}
    assert used <= names, f"{DASHBOARD} has {used - names}, which /metrics has not"
    families = lambda all: {re.sub(f"({'|'.join(SERIES)})$", "", name) for name in all}
    assert families(names) == families(used), f"{DASHBOARD} has not {families(names) - families(used)}"


def make_images(server, seed):
    """A job by every kind of route."""
    job = dict(prompt="a red apple", width=64, height=64, steps=4, seed=seed)
    server.request("POST", "/sdapi/v1/txt2img", job)
    _, _, answer = server.request("POST", "/v1/jobs", {**job, "preview_every": 1})
    server.request("GET", f"/v1/jobs/{json.loads(answer)['id']}/events")


class Prometheus:
    """Prometheus with the configuration, whose target is the server and whose times are short."""

    def __init__(self, folder, port):
        subprocess.run(["promtool", "check", "config", CONFIG], check=True, stdout=subprocess.DEVNULL)
        text = CONFIG.read_text()
        for name, value in ((TARGET, f"127.0.0.1:{port}"), (INTERVAL, "scrape_interval: 1s")):
            assert text.count(name) == 1, f"{CONFIG} has not {name}"
            text = text.replace(name, value)
        config = pathlib.Path(folder, "prometheus.yml")
        config.write_text(text)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={self.address}"]
        self.log = open(pathlib.Path(folder, "log"), "w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def has_values(self, expression):
        """Whether an expression gives numbers."""
        for name, value in (("$__rate_interval", "15s"), ("$instance", ".*")):
            expression = expression.replace(name, value)
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/query?{query}", timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        except urllib.error.URLError:
            return False  # it has not started yet
        return any(math.isfinite(float(series["value"][1])) for series in found["data"]["result"])

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def evaluate(server):
    """Makes images until every expression of the dashboard has values."""
    with tempfile.TemporaryDirectory() as folder:
        prometheus = Prometheus(folder, server.port)
        try:
            end, seed, left = time.monotonic() + SECONDS, 0, expressions()
            while left:
                make_images(server, seed)
                time.sleep(0.5)
                seed += 1
                left = [(panel, expression) for panel, expression in left if not prometheus.has_values(expression)]
                assert prometheus.process.poll() is None, pathlib.Path(folder, "log").read_text()
                assert time.monotonic() < end, f"no values in {SECONDS} s: {left}"
        finally:
            prometheus.stop()


def main(program):
    server = Server(program)
    try:
        make_images(server, 0)
        compare_names(exported(server))
        print(f"{len(expressions())} expressions: the metrics are those of the server")
        if shutil.which("prometheus") is None or shutil.which("promtool") is None:
            print("skipped: prometheus is not installed, and no expression was evaluated")
        else:
            evaluate(server)
            print(f"{len(expressions())} expressions: all have values in Prometheus")
        server.stop()
    finally:
        server.kill()


if __name__ == "__main__":
    main(sys.argv[1])
