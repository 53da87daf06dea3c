"""Runs ComfyUI's own page, from PyPI, against `kiln serve` in Chromium: it loads, queues its first graph, and shows the image.

Run: python3 tests/serve/comfy_page.py target/release/kiln [--screenshot FILE] [--page FOLDER]

`--page` is the folder `static` of the package comfyui-frontend-package; without it the package is installed for the run. It needs Chromium
and the package playwright of PyPI. Where one of them is missing, it says so and ends with success.
"""

import argparse
import json
import tempfile
from pathlib import Path

import served
from served import Server, install

PACKAGE = "comfyui-frontend-package>=1.40,<2"
SIZE = 256
STEPS = 6
#: Milliseconds for the page to load, and for an image to be made.
LONG = 120_000
#: The page's own words for what it wants from servers of its maker, and from packages that are not there.
EXPECTED = ("Content Security Policy", "Failed to load resource", "net::ERR_BLOCKED_BY_CSP")


def graph(model):
    """A graph as the page saves one: its nodes with places, links and values."""
    def node(number, kind, place, values=(), inputs=(), outputs=()):
        return {
            "id": number, "type": kind, "pos": place, "size": [300, 120], "flags": {}, "order": number, "mode": 0, "properties": {},
            "widgets_values": list(values),
            "inputs": [{"name": name, "type": type, "link": link} for name, type, link in inputs],
            "outputs": [{"name": type, "type": type, "links": links, "slot_index": i} for i, (type, links) in enumerate(outputs)],
        }

    nodes = [
        node(1, "CheckpointLoaderSimple", [0, 0], [model], (), [("MODEL", [1]), ("CLIP", [2, 3]), ("VAE", [4])]),
        node(2, "CLIPTextEncode", [350, 0], ["a red apple"], [("clip", "CLIP", 2)], [("CONDITIONING", [5])]),
        node(3, "CLIPTextEncode", [350, 250], [""], [("clip", "CLIP", 3)], [("CONDITIONING", [6])]),
        node(4, "EmptyLatentImage", [350, 450], [SIZE, SIZE, 1], (), [("LATENT", [7])]),
        node(5, "KSampler", [700, 0], [5, "fixed", STEPS, 3.0, "euler", "normal", 1.0],
             [("model", "MODEL", 1), ("positive", "CONDITIONING", 5), ("negative", "CONDITIONING", 6), ("latent_image", "LATENT", 7)],
             [("LATENT", [8])]),
        node(6, "VAEDecode", [1050, 0], (), [("samples", "LATENT", 8), ("vae", "VAE", 4)], [("IMAGE", [9])]),
        node(7, "SaveImage", [1050, 150], ["page"], [("images", "IMAGE", 9)]),
    ]
    links = [
        [1, 1, 0, 5, 0, "MODEL"], [2, 1, 1, 2, 0, "CLIP"], [3, 1, 1, 3, 0, "CLIP"], [4, 1, 2, 6, 1, "VAE"], [5, 2, 0, 5, 1, "CONDITIONING"],
        [6, 3, 0, 5, 2, "CONDITIONING"], [7, 4, 0, 5, 3, "LATENT"], [8, 5, 0, 6, 0, "LATENT"], [9, 6, 0, 7, 0, "IMAGE"],
    ]
    return {"last_node_id": 7, "last_link_id": 9, "nodes": nodes, "links": links, "groups": [], "config": {}, "extra": {}, "version": 0.4}


def run(browser, folder, users, program, screenshot):
    server = Server(program, "--front-end-root", str(folder), "--user-directory", str(users))
    try:
        workflows = users / "default/workflows"
        workflows.mkdir(parents=True)
        (workflows / "kept.json").write_text(json.dumps(graph("emoji")))
        address = f"http://127.0.0.1:{server.port}/comfy/"
        context = browser.new_context(viewport={"width": 1600, "height": 900})
        page, problems, outside = context.new_page(), [], []
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda m: m.type == "error" and not any(part in m.text for part in EXPECTED) and problems.append(m.text))
        own = (address.removesuffix("comfy/"), "blob:", "data:")
        page.on("response", lambda answer: answer.url.startswith(own) or outside.append(answer.url))
        page.goto(address)
        page.wait_for_function("() => window.app?.graph && window.app.extensionManager", timeout=LONG)
        kinds = page.evaluate("() => Object.keys(LiteGraph.registered_node_types)")
        assert {"KSampler", "CheckpointLoaderSimple", "SaveImage"} <= set(kinds), kinds

        # A graph that was saved is in the list of the page, and its image is the one of the API.
        listed = page.evaluate("async () => (await app.api.listUserDataFullInfo('workflows')).map(file => file.path)")
        assert listed == ["kept.json"], listed
        page.evaluate("async () => app.loadGraphData(await (await app.api.getUserData('workflows/kept.json')).json())")
        page.wait_for_function("() => app.graph._nodes.length === 7", timeout=LONG)
        page.evaluate("() => app.queuePrompt(0, 1)")
        page.wait_for_function("() => app.graph._nodes.find(node => node.type === 'SaveImage').imgs?.[0]?.naturalWidth", timeout=LONG)
        size = page.evaluate("() => { const [image] = app.graph._nodes.find(node => node.type === 'SaveImage').imgs;"
                             " return [image.naturalWidth, image.naturalHeight]; }")
        assert size == [SIZE, SIZE], size
        done = json.loads(server.get("/comfy/api/jobs?status=completed"))
        assert done["pagination"]["total"] == 1 and done["jobs"][0]["preview_output"]["filename"].startswith("page_"), done
        history = page.evaluate("async () => (await app.api.getHistory()).map(job => job.status)")
        assert history == ["completed"], history

        # What the page saves is in the folder of its user.
        page.evaluate("async () => app.api.storeUserData('workflows/new.json', app.graph.serialize())")
        assert len(json.loads((workflows / "new.json").read_text())["nodes"]) == 7
        page.evaluate("async () => app.api.storeSetting('Comfy.test', 3)")
        assert json.loads((users / "default/comfy.settings.json").read_text())["Comfy.test"] == 3
        if screenshot:
            page.keyboard.press("Escape")
            page.wait_for_timeout(1000)
            page.screenshot(path=screenshot)
        assert not problems, problems
        assert not outside, outside
        server.stop()
    finally:
        server.kill()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--screenshot", type=Path)
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    found = served.browser()
    if found is None:
        return
    chromium, sync_playwright = found
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = given.page
        if page is None:
            if not install(f"{folder}/packages", [PACKAGE]):
                return
            page = Path(folder) / "packages/comfyui_frontend_package/static"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        run(browser, page, Path(folder) / "users", given.program, given.screenshot)
        browser.close()
    print("ComfyUI's page: passed")


main()
