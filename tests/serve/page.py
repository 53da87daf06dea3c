"""Runs the page of `kiln serve` in Chromium: what a user does with it, and what it must not do.

Run: python3 tests/serve/page.py target/release/kiln [--screenshots DIR] [--page crates/serve/page]

With `--page` the files of a folder are used instead of those in the program, so that a change needs no build.

It needs Chromium (`apt-get install chromium`), the package playwright of PyPI and, for the checks of accessibility, npm, from which
axe-core comes. Where one of them is missing, it says so and ends with success.
"""

import argparse
import tempfile
from pathlib import Path

import browser_page
import page_form
import page_images
import page_queue
import page_server
import served


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--screenshots", type=Path)
    arguments.add_argument("--only")
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    browser_page.FILES = given.page
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
        axe = browser_page.axe_source(folder)
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        with browser_page.Server(given.program) as address:
            tests = {
                "make and use": lambda: page_form.make_and_use(browser, address, shoot),
                "large": lambda: page_form.large(browser, address, shoot),
                "prompts": lambda: page_form.prompts(browser, address, shoot),
                "settings": lambda: page_form.settings(browser, address, shoot),
                "first load": lambda: page_form.first_load(browser, address),
                "weights": lambda: page_form.weights(browser, address),
                "paint": lambda: page_images.paint(browser, address, shoot),
                "cancel": lambda: page_queue.cancel(browser, address),
                "order": lambda: page_queue.order(browser, address),
                "drop": lambda: page_images.drop(browser, address),
                "grid": lambda: page_images.grid(browser, address, shoot),
                "many": lambda: page_images.many(browser, address),
                "enlarge": lambda: page_images.enlarge(browser, address),
                "phone": lambda: page_server.phone(browser, address, shoot),
                "networks": lambda: page_server.networks(browser, given.program),
                "references": lambda: page_server.references(browser, given.program),
                "link": lambda: page_form.link(browser, address),
                "login": lambda: page_server.login(browser, given.program),
                "server gallery": lambda: page_server.server_gallery(browser, given.program, shoot, axe),
            }
            if axe:
                tests["accessible"] = lambda: page_server.accessible(browser, address, axe)
            else:
                print("skipped: axe-core cannot be installed from npm")
            for name, test in tests.items():
                if given.only in (None, name):
                    test()
                    print(f"{name}: passed", flush=True)
        browser.close()


main()
