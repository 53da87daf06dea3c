"""The form of the page: images, prompts, settings, weights, links, and what the first load costs."""

import json
import tempfile

from browser_page import DESKTOP, FILES, LONG, Page

#: The most bytes of the first load of the page.
FIRST_LOAD = 100_000


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
        # The page reads the file after the choice: it stays until the styles are there.
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
