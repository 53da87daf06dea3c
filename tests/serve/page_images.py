"""Images of the page: masks, dropped files, grids, many of them, larger ones."""

import json
import re
from pathlib import Path

from browser_page import DROP, LONG, Page, png


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
