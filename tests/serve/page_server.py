"""The page with servers of other kinds: a folder of images, networks, other models, keys; on a phone, and for all people."""

import json
import os
import re
import tempfile
import zipfile
from pathlib import Path

from browser_page import DROP, LONG, PHONE, Page, Server, check_axe, png

KEY = "a key of the test"
#: A model that edits reference images.
EDITOR = "../shared/data/families/models/flux2_klein"


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
