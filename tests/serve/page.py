"""Runs the page of `kiln serve` in Chromium: what a user does with it, and what it must not do.

Run: python3 tests/serve/page.py target/release/kiln [--screenshots DIR] [--page crates/serve/page]

With `--page` the files of a folder are used instead of those in the program, so that a change needs no build.

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
import zipfile
import zlib
from pathlib import Path

import served

AXE = "axe-core@4"
KEY = "a key of the test"
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
#: Milliseconds for images to be done.
LONG = 120_000
#: The most bytes of the first load of the page.
FIRST_LOAD = 100_000
#: The folder of page files that are used instead of the program's.
FILES = None
#: A model that edits reference images.
EDITOR = "../shared/data/families/models/flux2_klein"
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


def make_and_use(browser, address, shoot):
    """An image with previews; its settings; a reload; two tabs."""
    page = Page(browser, address)
    page.page.evaluate("""() => {
        window.previews = new Set();
        new MutationObserver(() => document.querySelectorAll('#stage img.live').forEach((image) => previews.add(image.src)))
            .observe(document.body, { childList: true, subtree: true, attributes: true });
    }""")
    page.generate("a red apple", steps=12, seed=42)
    page.page.wait_for_selector("#stage img.live", timeout=LONG)
    shoot(page, "running")
    page.images(1)
    assert page.page.evaluate("previews.size") >= 3, "previews did not change"
    page.page.wait_for_selector(".tile img")
    size = page.page.evaluate("[...document.querySelectorAll('.tile img')].map((image) => image.naturalWidth)")
    assert size == [256], size

    page.generate("a sailing boat", steps=3, seed=7)
    page.images(2)
    page.view(1)
    facts = page.facts()
    assert "a red apple" in facts and "42" in facts and "12" in facts, facts
    assert "backtrack" not in facts.lower() and "chunks" not in facts, facts
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


def large(browser, address, shoot):
    """The newest image is large; a tile that is selected becomes so; two images are compared."""
    page = Page(browser, address)
    for seed, prompt in ((1, "a red apple"), (2, "a sailing boat")):
        page.generate(prompt, steps=4, seed=seed)
        page.images(seed)
        page.page.wait_for_selector(f"#stage .text:has-text('{prompt}')")
    image = page.page.locator("#stage .canvas img")
    assert image.bounding_box()["height"] > 400, image.bounding_box()
    page.page.locator("#gallery .tile button").nth(1).click()
    page.page.wait_for_selector("#stage .text:has-text('a red apple')")
    assert "seed 1" in page.text("#stage .caption") and page.count("dialog") == 0
    marked = page.page.evaluate("[...document.querySelectorAll('#gallery .tile button')].map((tile) => tile.ariaCurrent)")
    assert marked == [None, "true"], marked
    page.page.locator("#stage .canvas").focus()
    page.page.keyboard.press("ArrowLeft")
    page.page.wait_for_selector("#stage .text:has-text('a sailing boat')")
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector(".viewer .prompt:has-text('a sailing boat')")
    page.page.keyboard.press("Escape")

    page.page.click("#compare")
    line = page.page.locator(".comparison input")
    line.wait_for()
    assert page.count(".comparison img") == 2 and line.input_value() == "50"
    line.focus()
    page.page.keyboard.press("End")
    assert page.page.evaluate("document.querySelector('.comparison').style.getPropertyValue('--at')") == "100%"
    box = line.bounding_box()
    page.page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    assert abs(float(line.input_value()) - 25) < 3, line.input_value()
    before = page.page.get_attribute(".comparison .before", "src")
    page.page.get_by_role("button", name="Swap", exact=True).click()
    page.page.wait_for_function("(before) => document.querySelector('.comparison .before').src !== before", arg=before)
    shoot(page, "compare")
    page.page.click("#compare")
    page.page.wait_for_selector("#stage .canvas")

    # An image that is made from another one is compared with that.
    page.view()
    page.page.click("text=Start from this image")
    page.page.wait_for_selector(".slot .shown img")
    page.page.fill("#form [data-option=seed]", "")
    page.page.click("#last-seed")
    assert page.page.input_value("#form [data-option=seed]") == "2"
    page.generate("a green boat", steps=4)
    page.images(3)
    page.page.wait_for_selector("#stage .text:has-text('a green boat')")
    page.page.click("#compare")
    page.page.wait_for_selector(".comparison img.before")
    same = page.page.evaluate("""async () => {
        const bytes = async (url) => new Uint8Array(await (await fetch(url)).arrayBuffer()).join();
        return await bytes(document.querySelector('.comparison .before').src) === await bytes(document.querySelector('.slot .shown img').src);
    }""") if page.page.evaluate("document.querySelector('.slot .shown img').src.startsWith('data:')") else None
    assert same in (True, None), "the image on the left is the input image"
    page.close()


def prompts(browser, address, shoot):
    """Tokens, styles, the history of prompts, and an empty prompt."""
    page = Page(browser, address)
    tokens = lambda text: page.page.wait_for_function("(text) => document.querySelector('#prompt-tokens').textContent === text", arg=text)
    tokens("0/75")
    page.page.fill("#prompt", "a red apple")
    tokens("3/75")
    page.page.fill("#prompt", "apple " * 80)
    tokens("80/150")
    with tempfile.NamedTemporaryFile("w", suffix=".csv", encoding="utf-8") as file:
        file.write('\ufeffname,prompt,negative_prompt\nOil,"{prompt}, oil, thick ""paint""",photo\nBright,"bright,\ncolors",\n,,\nhead,,\n')
        file.flush()
        section = page.section("Styles")
        with page.page.expect_file_chooser() as chooser:
            section.get_by_role("button", name="Import styles.csv").click()
        chooser.value.set_files(file.name)
    section.get_by_role("button", name="Oil", exact=True).click()
    section.get_by_role("button", name="Bright", exact=True).click()
    assert "Oil, Bright" in page.text("summary:has-text('Styles')")
    assert section.locator("li").count() == 2
    with page.page.expect_request("**/v1/jobs") as sent:
        page.generate("a red apple", seed=1)
    body = json.loads(sent.value.post_data)
    assert body["prompt"] == 'a red apple, oil, thick "paint", bright,\ncolors', body["prompt"]
    assert body["negative_prompt"] == "photo"
    page.images(1)
    page.page.fill("#prompt", "a green pear")
    section.get_by_label("Name of a new style").fill("Pear")
    section.get_by_role("button", name="Save the prompts").click()
    shoot(page, "styles")
    page.page.reload()
    page.page.wait_for_selector("#generate:enabled")
    section = page.section("Styles")
    assert section.locator("li > :first-child").all_inner_texts() == ["Bright", "Oil", "Pear"]
    page.page.once("dialog", lambda dialog: dialog.accept())
    section.get_by_role("button", name="Remove Oil").click()
    assert section.locator("li").count() == 2

    page.page.fill("#prompt", "something else")
    page.page.click("#history-open")
    shoot(page, "history")
    page.page.get_by_label("Search", exact=True).fill("red")
    page.page.locator(".history button:has-text('a red apple')").click()
    assert page.page.input_value("#prompt") == "a red apple" and page.count("dialog") == 0

    asked = []
    page.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.page.fill("#prompt", " ")
    page.page.keyboard.press("Control+Enter")
    page.page.wait_for_function("() => document.activeElement.id === 'prompt'")
    assert len(asked) == 1 and "prompt is empty" in asked[0] and page.count(".job") == 0, asked
    page.close()


def settings(browser, address, shoot):
    """Sizes by aspect ratio, sliders, the default sampler's name, and the search in options."""
    page = Page(browser, address)
    value = lambda name: page.page.input_value(f"#form [data-option={name}]")
    ratio = page.page.get_by_label("Aspect ratio")
    assert ratio.input_value() == ""
    ratio.select_option("16:9")
    assert (value("width"), value("height")) == ("344", "192"), (value("width"), value("height"))
    page.page.get_by_role("button", name="Swap width and height").click()
    assert (value("width"), value("height"), ratio.input_value()) == ("192", "344", "9:16")
    page.page.fill("#form [data-option=width]", "200")
    assert ratio.input_value() == "own"
    ratio.select_option("")
    assert (value("width"), value("height")) == ("", "")
    steps = page.page.locator(".slide:has([data-option=steps]) input[type=range]")
    assert steps.input_value() == page.page.get_attribute("[data-option=steps]", "placeholder")
    steps.focus()
    page.page.keyboard.press("ArrowRight")
    assert value("steps") == steps.input_value() == "21"
    page.page.fill("[data-option=steps]", "300")
    assert steps.input_value() == "60" and value("steps") == "300"
    assert page.text("[data-option=sampler] option").startswith("Default ("), page.text("[data-option=sampler] option")

    section = page.section("More options")
    page.page.wait_for_function("() => document.querySelectorAll('details.group').length > 8")  # they are made by an event
    assert section.locator(".field:visible").count() == 1, "groups are folded"
    search = section.get_by_label("Search options")
    search.fill("perturbed")
    assert section.locator("details.group:visible").count() == 1
    section.get_by_label("Perturbed attention: scale").fill("2")
    search.fill("no such option")
    assert section.locator("details.group:visible").count() == 0 and section.get_by_text("No option has this name").is_visible()
    search.fill("")
    assert section.locator("details.group:visible").count() > 8
    assert section.locator(".group:has-text('Perturbed') .state").inner_text() == "1"
    section.locator("summary", has_text="Rules of another program").click()
    section.locator(".group[open] label").first.wait_for()
    labels = section.locator(".group[open] label").all_inner_texts()
    assert labels == ["Noise levels and first noise as in", "Input images and refiners as in"], labels
    shoot(page, "options")
    page.close()


def first_load(browser, address):
    """The first load is small, and asks for no module twice."""
    context = browser.new_context(viewport=DESKTOP)
    page, sizes = context.new_page(), {}

    def note(request):
        assert request.url not in sizes or request.url.endswith("icon.svg"), request.url  # a tab has its icon by itself
        sizes[request.url] = request.sizes()["responseBodySize"]

    page.on("requestfinished", note)
    page.goto(address, wait_until="networkidle")
    page.wait_for_selector("#generate:enabled")
    total = sum(sizes.values())
    print(f"  {len(sizes)} requests, {total} bytes")
    assert FILES or total < FIRST_LOAD, (total, sizes)
    context.close()


def server_gallery(browser, program, shoot, axe):
    """The images of all browsers: search, selection, ZIP, settings, deletion."""
    with tempfile.TemporaryDirectory() as folder, Server(program, "--output", folder) as address:
        page = Page(browser, address)
        for seed, prompt in enumerate(("a red apple", "a sailing boat", "a green pear")):
            page.generate(prompt, seed=seed)
            page.images(seed + 1)
        page.close()
        other = Page(browser, address, bypass_csp=True, reduced_motion="reduce")
        assert other.count("#gallery .tile") == 0, "another browser has no images of its own"
        other.page.click("#place-server")
        tiles = other.page.locator(".server .tile")
        other.page.wait_for_function("() => document.querySelectorAll('.server .tile img').length === 3")
        assert other.text("#gallery-count") == "3"
        labels = tiles.locator("button").evaluate_all("(all) => all.map((button) => button.ariaLabel)")
        assert [label.split(",")[0] for label in labels] == ["Image of a green pear", "Image of a sailing boat", "Image of a red apple"], labels
        tiles.nth(2).locator("button").click()
        other.page.wait_for_selector("#stage .text:has-text('a red apple')")
        shoot(other, "server")
        other.page.click("#details")
        facts = other.facts()
        assert re.search(r"Steps\s+4", facts) and "emoji" in facts, facts
        other.page.click("text=Use these settings")
        assert other.page.input_value("#prompt") == "a red apple"

        other.page.get_by_label("Search prompts").fill("BOAT")
        other.page.wait_for_function("() => document.querySelectorAll('.server .tile').length === 1")
        other.page.get_by_label("Search prompts").fill("")
        other.page.wait_for_function("() => document.querySelectorAll('.server .tile').length === 3")
        other.page.get_by_role("button", name="Select", exact=True).click()
        for at in (0, 1):
            tiles.nth(at).locator("button").click()
        shoot(other, "server-selection")
        if axe:
            check_axe(other, axe, "selection")
            other.page.click("#compare")
            other.page.wait_for_selector(".comparison")
            check_axe(other, axe, "comparison")
            other.page.click("#compare")
        with other.page.expect_download() as saved:
            other.page.get_by_role("button", name="Download ZIP (2)").click()
        with zipfile.ZipFile(saved.value.path()) as archive:
            assert archive.testzip() is None and len(archive.namelist()) == 2
            for name in archive.namelist():
                assert archive.read(name) == (Path(folder) / name).read_bytes(), name
        asked = []
        other.page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        other.page.get_by_role("button", name="Delete (2)").click()
        assert len(asked) == 1 and "cannot be undone" in asked[0] and len(os.listdir(folder)) == 3
        other.page.once("dialog", lambda dialog: dialog.accept())
        other.page.get_by_role("button", name="Delete (2)").click()
        other.page.wait_for_function("() => document.querySelectorAll('.server .tile').length === 1")
        assert len(os.listdir(folder)) == 1
        other.page.click("#place-browser")
        assert other.count("#gallery:visible") == 0 or other.count("#gallery .tile") == 0
        other.close()


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
    page.view()
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
        const [result, input] = await Promise.all([...document.querySelectorAll('#gallery .tile img')].map(pixels));
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
    page.page.wait_for_selector(".field .error:has-text('Width is 250')", timeout=LONG)
    assert page.page.evaluate("document.activeElement.dataset.option") == "width"
    assert page.count(".job") == 0, "an error at its field needs no place in the queue"
    page.page.fill("[data-option=width]", "64")
    assert page.count(".field .error") == 0
    page.page.fill("#prompt", "a <lora:nope:1> b")
    page.page.click("#generate")
    page.page.wait_for_selector(".field:has(#prompt) .error:has-text('nope')", timeout=LONG)
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
    page.page.wait_for_selector("#stage .text:has-text('a red boat')")
    if page.count(".viewer") == 0:
        page.page.click("#details")
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
    page.view(999)
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
    page.view()
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
            notes = [{"name": "ink", "base": "sd_v1", "trigger": "inkdraw", "words": ["ink", "a cat"]}]
            added = {"loras": ["ink"], "lora_notes": notes, "ip_adapters": ["face"]}
            route.fulfill(response=answer, json={**answer.json(), **added})

        page.page.route("**/v1/capabilities", with_lora)
        page.page.reload()
        page.page.wait_for_selector("#generate:enabled")
        section = page.section("LoRAs")
        section.get_by_label("Add a LoRA").select_option("ink")
        section.get_by_role("spinbutton").fill("0.8")
        assert section.locator(".about").inner_text() == "For sd_v1. Words: inkdraw, ink, a cat"
        with page.page.expect_request("**/v1/jobs") as sent:
            page.generate("a red apple")
        assert json.loads(sent.value.post_data)["loras"] == [{"lora": {"named": "ink"}, "text": 0.8, "unet": 0.8}]
        page.page.wait_for_selector(".section .error:has-text('ink')")
        section.get_by_role("button", name="Remove ink").click()
        assert "LoRAs" == page.text("summary:has-text('LoRAs')").strip()
        section = page.section("Image prompts")
        section.get_by_role("button", name="Add an image prompt").click()
        page.page.fill("#prompt", "a pear")
        page.page.click("#generate")
        page.page.wait_for_selector(".message.bad:has-text('face has no image')")
        page.page.evaluate(DROP, ["face.png", list(png("", 64)), ".section[open] .unit .slot"])
        page.page.wait_for_selector(".unit .shown img")
        with page.page.expect_request("**/v1/jobs") as sent:
            page.generate("a pear")
        prompt = json.loads(sent.value.post_data)["ip_adapters"][0]
        assert prompt.pop("image").startswith("data:image/png")
        assert prompt == {"model": "face", "weight": 1, "start": 0, "end": 1}, prompt
        page.page.wait_for_selector(".job.failed")
        section.get_by_role("button", name="Remove this image prompt").click()
        page.page.fill("#prompt", "")
        page.page.locator("#prompt").press_sequentially("a pear <lora:i")
        assert page.page.locator(".names li").all_inner_texts() == ["ink"]
        page.page.keyboard.press("Enter")
        assert page.page.input_value("#prompt") == "a pear <lora:ink:1>" and not page.page.locator(".names").first.is_visible()
        page.problems = [problem for problem in page.problems if "400" not in problem]
        page.close()


def references(browser, program):
    """Reference images, for models that take them."""
    if not Path(EDITOR).is_dir():
        print(f"skipped: {EDITOR} is missing")
        return
    with Server(program, "-m", EDITOR) as address:
        page = Page(browser, address)
        place = page.page.locator("details.section", has=page.page.locator("summary", has_text="Reference images"))
        assert not place.is_visible(), "the first model takes none"
        page.page.select_option("#model-choice", Path(EDITOR).name)
        section = page.section("Reference images")
        assert "changes these images" in section.inner_text(), section.inner_text()
        for count in (1, 2):
            page.page.evaluate(DROP, [f"{count}.png", list(png("", 64)), "details[open] .slot:has(.drop)"])
            page.page.wait_for_function("(n) => document.querySelectorAll('details[open] .slot img').length === n", arg=count)
        assert section.locator(".state").inner_text() == "2" and section.locator(".slot").count() == 3
        with page.page.expect_request("**/v1/jobs") as sent:
            page.generate("a fox", steps=2, seed=1, width=64, height=64)
        images = json.loads(sent.value.post_data)["references"]
        assert len(images) == 2 and all(image.startswith("data:image/png") for image in images), images
        page.images(1)
        page.page.select_option("#model-choice", "emoji")
        with page.page.expect_request("**/v1/jobs") as sent:
            page.generate("a fox", steps=2, seed=1)
        assert "references" not in json.loads(sent.value.post_data)
        page.images(2)
        page.close()


def link(browser, address):
    """A link with settings, in another tab and in the same one; one that is cut off."""
    page = Page(browser, address, permissions=["clipboard-read", "clipboard-write"])
    page.generate("a red äpple 🍎", steps=3, seed=42, cfg_scale=4)
    page.images(1)
    page.view()
    page.facts()
    page.page.get_by_role("button", name="Copy a link to the settings").click()
    page.page.wait_for_selector("text=The link is in the clipboard.")
    copied = page.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(address + "#settings="), copied
    page.close()

    page = Page(browser, copied)
    page.page.wait_for_selector("text=The form has the settings of the link.")
    value = lambda name: page.page.input_value(f"#form [data-option={name}]")
    assert page.page.input_value("#prompt") == "a red äpple 🍎"
    assert (value("steps"), value("seed"), value("cfg_scale")) == ("3", "42", "4"), value("steps")
    assert page.page.url == address, page.page.url
    page.page.fill("#prompt", "another")
    page.page.evaluate("(link) => { location.hash = new URL(link).hash }", copied)
    page.page.wait_for_function("() => document.querySelector('#prompt').value.startsWith('a red')")
    page.page.evaluate("(link) => { location.hash = new URL(link).hash.slice(0, -9) }", copied)
    page.page.wait_for_selector("text=The link with settings is not whole.")
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
    page.page.wait_for_selector("#stage img.live", timeout=LONG)
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
    page.view()
    page.page.wait_for_selector(".viewer img")
    shoot(page, "phone-viewer")
    page.page.click("text=Start from this image")
    page.page.click("#paint")
    page.page.locator(".sheet").tap()
    shoot(page, "phone-painter")
    page.page.click("text=Use this mask")
    assert page.page.evaluate(wide) <= 0
    page.close()


def check_axe(page, axe, *what):
    """axe-core finds nothing in a page as it is now."""
    page.page.evaluate(axe)
    found = page.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    problems = [(problem["id"], node["html"], node["failureSummary"]) for problem in found for node in problem["nodes"]]
    assert not problems, (*what, problems)


def accessible(browser, address, axe):
    """axe-core finds nothing, in light and dark, in all states of the page."""
    for scheme in ("light", "dark"):
        page = Page(browser, address, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")

        def check(what):
            check_axe(page, axe, scheme, what)

        check("empty")
        page.generate("a red apple", steps=30, seed=42)
        page.page.wait_for_selector("#stage img.live", timeout=LONG)
        check("running")
        page.images(1)
        for title in ("Input image", "Grid", "More options"):
            page.section(title)
        page.section("Styles")
        page.page.get_by_label("Name of a new style").fill("Apple")
        page.page.get_by_role("button", name="Save the prompts").click()
        page.page.locator("details.group summary").first.click()
        page.page.fill("[data-option=width]", "250")
        page.page.click("#generate")
        page.page.wait_for_selector(".field .error")
        check("sections")
        page.page.fill("[data-option=width]", "256")
        page.problems = [problem for problem in page.problems if "400" not in problem]
        page.page.click("#history-open")
        check("history")
        page.page.keyboard.press("Escape")
        page.page.evaluate("scrollTo(0, 0)")
        page.view()
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
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    global FILES
    FILES = given.page
    found = served.browser()
    if found is None:
        return
    chromium, sync_playwright = found

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
                "large": lambda: large(browser, address, shoot),
                "prompts": lambda: prompts(browser, address, shoot),
                "settings": lambda: settings(browser, address, shoot),
                "first load": lambda: first_load(browser, address),
                "weights": lambda: weights(browser, address),
                "paint": lambda: paint(browser, address, shoot),
                "cancel": lambda: cancel(browser, address),
                "drop": lambda: drop(browser, address),
                "grid": lambda: grid(browser, address, shoot),
                "many": lambda: many(browser, address),
                "enlarge": lambda: enlarge(browser, address),
                "phone": lambda: phone(browser, address, shoot),
                "networks": lambda: networks(browser, given.program),
                "references": lambda: references(browser, given.program),
                "link": lambda: link(browser, address),
                "login": lambda: login(browser, given.program),
                "server gallery": lambda: server_gallery(browser, given.program, shoot, axe),
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
