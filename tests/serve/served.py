"""A server on a free port, and plain requests to it, for the scripts of this folder."""

import http.client
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

MODEL = "models/emoji"


def install(folder, packages):
    """Installs packages from PyPI into a folder for imports; False where PyPI is not reached."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *packages]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        print("skipped: the packages cannot be installed:", result.stderr.strip().splitlines()[-1:])
        return False
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    return True


def browser():
    """The path of Chromium and playwright's entry; None if one of them is missing, which is printed."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if chromium is None or sync_playwright is None:
        print("skipped: Chromium and the package playwright are needed")
        return None
    return chromium, sync_playwright


class Server:
    """`kiln serve` with the emoji model."""

    def __init__(self, program, *options, models=(MODEL,), limit=None):
        """`limit` is the most bytes of writable memory (`ulimit -d`), beyond which the process has none."""
        named = [part for model in models for part in ("-m", model)]
        command = [program, "serve", *named, "--listen", "127.0.0.1:0", *options]
        limited = limit and (lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limited)
        self.port = int(self.process.stdout.readline().strip().rsplit(":", 1)[1])

    def request(self, method, path, body=None, headers=(), timeout=300):
        """Status, headers and bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path):
        status, _, body = self.request("GET", path)
        assert status == 200, (path, status, body)
        return body

    def metric(self, name):
        """The sum of a metric's values over its labels."""
        lines = self.get("/metrics").decode().splitlines()
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(found)

    def memory(self):
        """Bytes in memory of the process."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def files(self):
        """How many files and connections the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """Ends the server by a signal; it has to end well."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=120) == 0, self.process.returncode

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
