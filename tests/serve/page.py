"""Runs the page of `kiln serve` in Chromium: what a user does with it, and what it must not do.

Run: python3 tests/serve/page.py target/release/kiln [--screenshots DIR]

It needs Chromium (`apt-get install chromium`), the package playwright of PyPI and, for the checks of accessibility, npm, from which
axe-core comes. Where one of them is missing, it says so and ends with success.
"""

import argparse
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

AXE = "axe-core@4"
KEY = "a key of the test"
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
#: Milliseconds for images to be done.
LONG = 120_000


class Page:
    """A page with its server, which notes everything that must not happen."""

    def __init__(self, browser, address, **context):
        self.context = browser.new_context(**{"viewport": DESKTOP, **context})
        self.problems = []
        self.address = address
        self.page = self.context.new_page()
        self.page.on("console", self.console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self.request)
        self.page.goto(address)
        self.page.wait_for_selector("#generate:enabled, dialog[open]")

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
        self.page.wait_for_function("(n) => document.querySelectorAll('.tile').length === n", arg=count, timeout=LONG)

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


def make_and_use(browser, address, shoot):
    """An image with previews; its settings; a reload; two tabs."""
    page = Page(browser, address)
    page.page.evaluate("""() => {
        window.previews = new Set();
        new MutationObserver(() => document.querySelectorAll('.job .live img').forEach((image) => previews.add(image.src)))
            .observe(document.body, { childList: true, subtree: true, attributes: true });
    }""")
    page.generate("a red apple", steps=12, seed=42)
    page.page.wait_for_selector(".job .live img", timeout=LONG)
    shoot(page, "running")
    page.images(1)
    assert page.page.evaluate("previews.size") >= 3, "previews did not change"
    page.page.wait_for_selector(".tile img")
    size = page.page.evaluate("[...document.querySelectorAll('.tile img')].map((image) => image.naturalWidth)")
    assert size == [256], size

    page.generate("a sailing boat", steps=3, seed=7)
    page.images(2)
    page.page.locator(".tile button").nth(1).click()
    facts = page.facts()
    assert "a red apple" in facts and "42" in facts and "12" in facts, facts
    shoot(page, "viewer")
    page.page.keyboard.press("ArrowLeft")
    page.page.wait_for_selector(".viewer .prompt:has-text('a sailing boat')")
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_selector(".viewer .prompt:has-text('a red apple')")
    page.page.click("text=Use these settings")
    assert page.page.input_value("#prompt") == "a red apple"
    assert page.page.input_value("[data-option=seed]") == "42" and page.page.input_value("[data-option=steps]") == "12"

    page.page.reload()
    page.page.wait_for_selector(".tile img")
    assert page.count(".tile") == 2 and page.page.input_value("#prompt") == "a red apple"
    other = page.context.new_page()
    other.goto(address)
    other.wait_for_selector(".tile img")
    assert other.locator(".tile").count() == 2
    other.close()
    shoot(page, "gallery")
    page.close()


def weights(browser, address):
    """Ctrl and the arrow keys change weights."""
    page = Page(browser, address)
    area = page.page.locator("#prompt")

    def after(text, select, keys):
        area.fill(text)
        area.evaluate("(area, [from, to]) => area.setSelectionRange(from, to)", select)
        for key in keys:
            page.page.keyboard.press(f"Control+{key}")
        return area.input_value()

    up, down = "ArrowUp", "ArrowDown"
    assert after("a red apple", [3, 3], [up]) == "a (red:1.1) apple"
    assert after("a red apple", [3, 3], [up, up, up]) == "a (red:1.3) apple"
    assert after("a red apple", [3, 3], [up, down]) == "a red apple"
    assert after("a red apple", [2, 11], [down]) == "a (red apple:0.9)"
    assert after("a (red:1.25) apple", [4, 4], [up]) == "a (red:1.35) apple"
    assert after("a <lora:ink:0.8> b", [6, 6], [up]) == "a <lora:ink:0.9> b"
    assert after("", [0, 0], [up]) == ""
    page.page.keyboard.press("Control+z")
    page.close()


def paint(browser, address, shoot):
    """An image to begin with, and a mask that is painted, undone, erased and painted with keys."""
    page = Page(browser, address)
    page.generate("a red apple", seed=42)
    page.images(1)
    page.page.click(".tile button")
    page.page.click("text=Start from this image")
    page.page.wait_for_selector(".slot .shown img")
    page.page.click("#paint")
    sheet = page.page.locator(".sheet")
    box = sheet.bounding_box()

    def painted():
        return page.page.evaluate("""() => {
            const canvas = document.querySelector('.sheet .paint');
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
            copy.drawImage(canvas, 0, 0);
            const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
            let count = 0;
            for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 127;
            return count / (canvas.width * canvas.height);
        }""")

    def stroke(y):
        mouse = page.page.mouse
        mouse.move(box["x"] + 0.2 * box["width"], box["y"] + y * box["height"])
        mouse.down()
        mouse.move(box["x"] + 0.8 * box["width"], box["y"] + y * box["height"], steps=8)
        mouse.up()

    button = lambda name: page.page.locator(".painter").get_by_role("button", name=name, exact=True)
    stroke(0.3)
    one = painted()
    assert 0.05 < one < 0.12, one
    stroke(0.6)
    assert painted() > 1.8 * one
    button("Eraser").click()
    stroke(0.6)
    assert abs(painted() - one) < 0.01
    button("Undo").click()
    assert painted() > 1.8 * one
    sheet.focus()
    page.page.keyboard.press("Control+z")
    assert abs(painted() - one) < 0.01
    button("Fill").click()
    assert painted() == 1, painted()
    button("Clear").click()
    assert painted() == 0 and button("Undo").is_disabled()
    button("Eraser").click()
    sheet.focus()
    page.page.keyboard.press("]")
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press(" ")
    assert painted() > 0.01
    stroke(0.25)
    page.page.fill(".painter [data-option=mask_blur]", "3")
    assert "blur" in page.page.evaluate("document.querySelector('.sheet .paint').style.filter")
    shoot(page, "painter")
    page.page.click("text=Use this mask")
    assert "with a mask" in page.text("summary:has-text('Input image')")
    shoot(page, "mask")

    with page.page.expect_request("**/v1/jobs") as sent:
        page.generate("a green pear", seed=5)
    body = json.loads(sent.value.post_data)
    assert body["init"].startswith("data:image/png") and body["mask"].startswith("data:image/png"), body.keys()
    assert body["mask_blur"] == 3
    page.images(2)
    # Outside of the mask the result is the input.
    same = page.page.evaluate("""async () => {
        const pixels = async (image) => {
            const bitmap = await createImageBitmap(image);
            const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d', { willReadFrequently: true });
            context.drawImage(bitmap, 0, 0);
            return (y) => context.getImageData(0, y, bitmap.width, 8).data.join();
        };
        const [result, input] = await Promise.all([...document.querySelectorAll('.tile img')].map(pixels));
        return [result(240) === input(240), result(64) === input(64)];
    }""") if page.page.wait_for_function("() => document.querySelectorAll('.tile img').length === 2") else None
    assert same == [True, False], same
    page.close()


def cancel(browser, address):
    """A job that runs and one that waits are canceled; one is finished early; a wrong value is shown at its field."""
    page = Page(browser, address)
    page.generate("a long one", steps=900)
    page.page.wait_for_selector(".job:not(.waiting) progress", timeout=LONG)
    page.generate("another", steps=900)
    page.page.wait_for_function("() => document.querySelectorAll('.job').length === 2")
    page.page.locator(".job", has_text="another").get_by_role("button", name="Cancel").click()
    page.page.wait_for_function("() => document.querySelectorAll('.job').length === 1", timeout=LONG)
    page.page.locator("#shortcuts-open").focus()
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("#queue", state="hidden", timeout=LONG)
    assert page.count(".tile") == 0
    page.generate("as it is", steps=900)
    page.page.get_by_role("button", name="Finish now").click(timeout=LONG)
    page.images(1)

    page.page.fill("[data-option=steps]", "0")
    page.page.click("#generate")
    assert page.page.evaluate("document.activeElement.dataset.option") == "steps"
    assert page.count(".job") == 0, "a wrong value was sent"
    page.page.fill("[data-option=steps]", "4")
    page.page.fill("[data-option=width]", "250")
    page.page.click("#generate")
    page.page.wait_for_selector(".job.waiting:has-text('width')", timeout=LONG)
    assert page.page.evaluate("document.activeElement.dataset.option") == "width"
    page.problems = [problem for problem in page.problems if "400" not in problem]  # the browser notes each answer
    page.close()


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


def drop(browser, address):
    """Settings are read from files that are dropped: of AUTOMATIC1111's text, without settings, and no image at all."""
    page = Page(browser, address)
    text = "a (blue:1.2) cat\nNegative prompt: dog\nSteps: 7, Sampler: Euler a, CFG scale: 4.5, Seed: 99, Size: 128x192"
    page.page.evaluate(DROP, ["a.png", list(png(text)), "body"])
    page.page.wait_for_selector(".viewer .prompt:has-text('a (blue:1.2) cat')")
    page.page.click("text=Use these settings")
    value = lambda name: page.page.input_value(f"#form [data-option={name}]")
    assert (value("prompt"), value("negative_prompt")) == ("a (blue:1.2) cat", "dog")
    assert (value("steps"), value("sampler"), value("seed"), value("cfg_scale")) == ("7", "euler_a", "99", "4.5")
    assert (value("width"), value("height")) == ("128", "192")

    page.page.evaluate(DROP, ["b.png", list(png("")), "body"])
    page.page.wait_for_selector(".viewer")
    assert page.count("text=Use these settings") == 0
    page.page.keyboard.press("Escape")
    page.page.evaluate(DROP, ["c.png", list(b"no image"), "body"])
    page.page.wait_for_selector(".message.bad:has-text('c.png')")
    page.section("Input image")
    page.page.evaluate(DROP, ["d.png", list(png("")), ".slot"])
    page.page.wait_for_selector(".slot .shown img")
    assert page.page.get_attribute("[data-option=width]", "placeholder") == "64"
    page.problems = [problem for problem in page.problems if "422" not in problem]
    page.close()


def grid(browser, address, shoot):
    """Steps by words of the prompt; each cell is an image with its settings."""
    page = Page(browser, address)
    section = page.section("Grid")
    section.get_by_label("Columns", exact=True).select_option("steps")
    section.get_by_label("Values of the columns").fill("2..6/2")
    section.get_by_label("Rows", exact=True).select_option("prompt")
    section.get_by_label("Values of the rows").fill("apple, boat")
    page.page.fill("#prompt", "a red apple")
    assert page.text("#generate") == "Generate a grid of 6"
    page.page.click("#generate")
    page.images(6)
    page.page.wait_for_function("() => document.querySelectorAll('#grid td button:enabled').length === 6", timeout=LONG)
    heads = page.page.locator("#grid th").all_inner_texts()
    assert heads == ["Steps: 2", "Steps: 4", "Steps: 6", "apple", "boat"], heads
    shoot(page, "grid")
    page.page.locator("#grid td button").nth(4).click()
    facts = page.facts()
    assert "a red boat" in facts and re.search(r"Steps\s+4", facts), facts
    page.page.keyboard.press("Escape")
    with page.page.expect_download() as saved:
        page.page.click("text=Save as an image")
    assert Path(saved.value.path()).read_bytes()[:4] == b"\x89PNG"
    section.get_by_label("Values of the columns").fill("9..1")
    page.page.click("#generate")
    page.page.wait_for_selector(".message.bad:has-text('9..1')")
    page.close()


def many(browser, address):
    """1,000 images: few of them are decoded, and scrolling, keys and removal work."""
    page = Page(browser, address)
    page.page.evaluate("""async (bytes) => {
        const { openStore } = await import('/page/js/store.js');
        const store = await openStore();
        const file = new Blob([new Uint8Array(bytes)], { type: 'image/png' });
        for (let seed = 0; seed < 1000; seed += 1) {
            await store.add({ width: 64, height: 64, seed, model: 'emoji', request: { prompt: `number ${seed}`, seed } }, file);
        }
    }""", list(png("")))
    page.page.reload()
    page.images(1000)
    page.page.wait_for_selector(".tile img")
    assert page.text("#gallery-count") == "1000"
    shown = page.count(".tile img")
    assert 0 < shown < 150, f"{shown} images are decoded"
    page.page.locator(".tile").last.scroll_into_view_if_needed()
    page.page.wait_for_selector(".tile:last-child img")
    page.page.wait_for_function("() => document.querySelectorAll('.tile img').length < 150")
    page.page.locator(".tile button").last.click()
    page.page.wait_for_selector(".viewer .prompt:has-text('number 0')")
    page.page.keyboard.press("Delete")
    page.images(999)
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("Home")
    assert "number 999" in page.page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.page.on("dialog", lambda dialog: dialog.accept())
    page.page.click("#gallery-clear")
    page.images(0)
    page.close()


def enlarge(browser, address):
    """An image is made larger, and keeps its settings."""
    page = Page(browser, address)
    page.generate("a red apple", seed=42, width=64, height=64)
    page.images(1)
    page.page.click(".tile button")
    page.facts()
    viewer = page.page.locator(".viewer")
    viewer.get_by_label("Upscaler", exact=True).select_option("lanczos")
    viewer.get_by_label("Scale", exact=True).fill("3")
    page.page.click(".viewer .enlarge button")
    page.images(2)
    page.page.wait_for_selector(".viewer:has-text('192 × 192')")
    assert "42" in page.text(".viewer dl")
    page.close()


def networks(browser, program):
    """A control network with its image, a second pass, and a LoRA, which this server does not have."""
    with Server(program, "--control-dir", "models/emoji-controlnet-edges") as address:
        page = Page(browser, address)
        section = page.section("ControlNet")
        section.get_by_role("button", name="Add a network").click()
        page.page.evaluate(DROP, ["edges.png", list(png("", 256)), ".unit .slot"])
        page.page.wait_for_selector(".unit .shown img")
        section.get_by_label("Weight").fill("0.5")
        with page.page.expect_request("**/v1/jobs") as sent:
            page.generate("a red apple", seed=42)
        control = json.loads(sent.value.post_data)["controls"][0]
        assert control["net"] == "emoji-controlnet-edges" and control["weight"] == 0.5, control["net"]
        assert control["image"].startswith("data:image/png")
        page.images(1)
        section.get_by_role("button", name="Remove this network").click()

        page.section("Hires fix")
        page.generate("a red apple", seed=42, width=128, height=128, hires_scale=2)
        page.images(2)
        page.page.wait_for_function("() => document.querySelector('.tile img')?.naturalWidth === 256")

        def with_lora(route):
            answer = route.fetch()
            route.fulfill(response=answer, json={**answer.json(), "loras": ["ink"]})

        page.page.route("**/v1/capabilities", with_lora)
        page.page.reload()
        page.page.wait_for_selector("#generate:enabled")
        section = page.section("LoRAs")
        section.get_by_label("Add a LoRA").select_option("ink")
        section.get_by_role("spinbutton").fill("0.8")
        with page.page.expect_request("**/v1/jobs") as sent:
            page.generate("a red apple")
        assert json.loads(sent.value.post_data)["loras"] == [{"lora": {"named": "ink"}, "text": 0.8, "unet": 0.8}]
        page.page.wait_for_selector(".job:has-text('ink')")
        section.get_by_role("button", name="Remove ink").click()
        assert "LoRAs" == page.text("summary:has-text('LoRAs')").strip()
        page.problems = [problem for problem in page.problems if "400" not in problem]
        page.close()


def login(browser, program):
    """The page asks for a key, and keeps it for the tab."""
    with Server(program, "--api-key", KEY) as address:
        page = Page(browser, address)
        page.page.fill("#key", "wrong")
        page.page.keyboard.press("Enter")
        page.page.wait_for_selector("text=was not accepted")
        page.page.fill("#key", KEY)
        page.page.keyboard.press("Enter")
        page.page.wait_for_selector("#generate:enabled")
        page.generate("a red apple", seed=42)
        page.images(1)
        page.page.reload()
        page.page.wait_for_selector("#generate:enabled")
        assert page.count("dialog") == 0
        assert KEY not in page.page.evaluate("JSON.stringify(localStorage) + location.href + document.cookie")
        page.problems = [problem for problem in page.problems if "401" not in problem]
        page.close()


def phone(browser, address, shoot):
    """A phone: nothing is wider than the window, and buttons are large enough for a finger."""
    page = Page(browser, address, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    page.generate("a red apple", seed=42, steps=8)
    page.page.wait_for_selector(".job .live img", timeout=LONG)
    shoot(page, "phone-running")
    page.images(1)
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert page.page.evaluate(wide) <= 0
    shoot(page, "phone-gallery")
    for title in ("Input image", "Grid", "More options"):
        page.section(title)
    assert page.page.evaluate(wide) <= 0
    small = page.page.evaluate("""() => [...document.querySelectorAll('button, select, input:not([type=checkbox], [type=range])')]
        .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height < 32).map((element) => element.outerHTML)""")
    assert not small, small
    page.page.locator(".tile button").first.click()
    page.page.wait_for_selector(".viewer img")
    shoot(page, "phone-viewer")
    page.page.click("text=Start from this image")
    page.page.click("#paint")
    page.page.locator(".sheet").tap()
    shoot(page, "phone-painter")
    page.page.click("text=Use this mask")
    assert page.page.evaluate(wide) <= 0
    page.close()


def accessible(browser, address, axe):
    """axe-core finds nothing, in light and dark, in all states of the page."""
    for scheme in ("light", "dark"):
        page = Page(browser, address, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")

        def check(what):
            page.page.evaluate(axe)
            found = page.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
            problems = [(problem["id"], node["html"], node["failureSummary"]) for problem in found for node in problem["nodes"]]
            assert not problems, (scheme, what, problems)

        check("empty")
        page.generate("a red apple", steps=30, seed=42)
        page.page.wait_for_selector(".job .live img", timeout=LONG)
        check("running")
        page.images(1)
        for title in ("Input image", "Grid", "More options"):
            page.section(title)
        check("sections")
        page.page.evaluate("scrollTo(0, 0)")
        page.page.click(".tile button")
        page.page.wait_for_selector(".viewer img")
        check("viewer")
        page.page.click("text=Start from this image")
        page.page.click("#paint")
        page.page.wait_for_selector(".sheet img")
        check("painter")
        page.page.locator(".sheet").click()
        page.page.click("text=Use this mask")
        check("mask")
        page.page.click("#shortcuts-open")
        check("shortcuts")
        page.close()
    page = Page(browser, address, bypass_csp=True)
    page.page.goto(f"{address}docs")
    page.page.evaluate(axe)
    found = page.page.evaluate("axe.run()")["violations"]
    assert not found, [(problem["id"], [node["html"] for node in problem["nodes"]][:3]) for problem in found]
    page.close()


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


def axe_source(folder):
    """The script of axe-core from npm; None where npm is not reached."""
    if shutil.which("npm") is None:
        return None
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, AXE]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return None
    return (Path(folder) / "node_modules/axe-core/axe.min.js").read_text()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--screenshots", type=Path)
    arguments.add_argument("--only")
    given = arguments.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if chromium is None or sync_playwright is None:
        print("skipped: Chromium and the package playwright are needed")
        return

    def shoot(page, name):
        if given.screenshots:
            given.screenshots.mkdir(parents=True, exist_ok=True)
            page.page.wait_for_timeout(200)
            page.page.screenshot(path=given.screenshots / f"{name}.png")

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        axe = axe_source(folder)
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        with Server(given.program) as address:
            tests = {
                "make and use": lambda: make_and_use(browser, address, shoot),
                "weights": lambda: weights(browser, address),
                "paint": lambda: paint(browser, address, shoot),
                "cancel": lambda: cancel(browser, address),
                "drop": lambda: drop(browser, address),
                "grid": lambda: grid(browser, address, shoot),
                "many": lambda: many(browser, address),
                "enlarge": lambda: enlarge(browser, address),
                "phone": lambda: phone(browser, address, shoot),
                "networks": lambda: networks(browser, given.program),
                "login": lambda: login(browser, given.program),
            }
            if axe:
                tests["accessible"] = lambda: accessible(browser, address, axe)
            else:
                print("skipped: axe-core cannot be installed from npm")
            for name, test in tests.items():
                if given.only in (None, name):
                    test()
                    print(f"{name}: passed", flush=True)
        browser.close()


main()
