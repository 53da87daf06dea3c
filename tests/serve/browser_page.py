"""A page in Chromium with its server, and what its tests share."""

import re
import shutil
import signal
import struct
import subprocess
import zlib
from pathlib import Path

AXE = "axe-core@4"
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
#: Milliseconds for images to be done.
LONG = 120_000
#: The folder of page files that are used instead of the program's.
FILES = None
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Page:
    """A page with its server, which notes everything that must not happen."""

    def __init__(self, browser, address, **context):
        self.context = browser.new_context(**{"viewport": DESKTOP, **context})
        self.problems = []
        self.address = address.partition("#")[0]
        if FILES:
            self.context.route(re.compile(re.escape(address) + r"(page/.*)?$"), self.from_folder)
        self.page = self.context.new_page()
        self.page.on("console", self.console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self.request)
        self.page.goto(address)
        self.page.wait_for_selector("#generate:enabled, dialog[open]")

    def from_folder(self, route):
        answer = route.fetch()
        path = FILES / (route.request.url.removeprefix(self.address).removeprefix("page/") or "index.html")
        policy = {"content-security-policy": answer.headers["content-security-policy"]} if answer.ok else {}
        headers = {"content-type": TYPES[path.suffix], **policy}
        route.fulfill(status=200, headers=headers, body=path.read_bytes())

    def console(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def request(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.problems.append(f"a request left the machine: {request.url}")

    def generate(self, prompt, steps=4, **fields):
        """Fills the form and sends it. Fields are options by their names."""
        self.page.fill("#prompt", prompt)
        for name, value in {"steps": steps, **fields}.items():
            self.page.fill(f"#form [data-option={name}]", str(value))
        self.page.click("#generate")

    def images(self, count):
        """Waits until the gallery has so many images."""
        self.page.wait_for_function("(n) => document.querySelectorAll('#gallery .tile').length === n", arg=count, timeout=LONG)

    def view(self, at=0):
        """Opens an image of the gallery with its settings."""
        tile = self.page.locator("#gallery .tile button").nth(at)
        if tile.get_attribute("aria-current") is None:
            tile.click()
            self.page.wait_for_function("(at) => document.querySelectorAll('#gallery .tile button')[at].ariaCurrent === 'true'", arg=at)
        self.page.click("#details")
        self.page.wait_for_selector(".viewer")

    def count(self, selector):
        return self.page.locator(selector).count()

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def facts(self):
        """The text of the viewer, when it has its image."""
        self.page.wait_for_selector(".viewer .prompt")
        return self.text(".viewer")

    def section(self, title):
        section = self.page.locator("details.section", has=self.page.locator("summary", has_text=title))
        if section.get_attribute("open") is None:
            section.locator("summary").click()
        return section

    def close(self):
        self.context.close()
        assert not self.problems, self.problems


class Server:
    """`kiln serve` with the emoji model on a free port."""

    def __init__(self, program, *flags):
        self.command = [program, "serve", "-m", "models/emoji", "--listen", "127.0.0.1:0", *flags]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        return self.process.stdout.readline().strip() + "/"

    def __exit__(self, *error):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0


def png(text, size=64):
    """A gray PNG file with settings."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * size) * size)
    texts = chunk(b"tEXt", b"parameters\0" + text.encode("latin-1")) if text else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + texts + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


DROP = """([name, bytes, selector]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name, { type: 'image/png' }));
    const place = document.querySelector(selector);
    for (const type of ['dragover', 'drop']) {
        place.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
    }
}"""


def check_axe(page, axe, *what):
    """axe-core finds nothing in a page as it is now."""
    page.page.evaluate(axe)
    found = page.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    problems = [(problem["id"], node["html"], node["failureSummary"]) for problem in found for node in problem["nodes"]]
    assert not problems, (*what, problems)


def axe_source(folder):
    """The script of axe-core from npm; None where npm is not reached."""
    if shutil.which("npm") is None:
        return None
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, AXE]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return None
    return (Path(folder) / "node_modules/axe-core/axe.min.js").read_text()
