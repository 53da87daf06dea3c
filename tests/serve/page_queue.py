"""The queue of the page: jobs are canceled, finished early and moved."""

from browser_page import LONG, Page


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


def order(browser, address):
    """Jobs that wait are moved by the keyboard, at the server too, and the focus stays."""
    page = Page(browser, address)
    page.generate("the first", steps=900)
    page.page.wait_for_selector(".job:not(.waiting) progress", timeout=LONG)
    for prompt in ("one", "two", "three"):
        page.generate(prompt, steps=900)
    texts = "() => [...document.querySelectorAll('.job.waiting .text')].map((text) => text.textContent).join()"
    waits = "() => [...document.querySelectorAll('.job.waiting .where')].every((text) => text.textContent !== 'Waits in this page')"

    def expect(prompts):
        page.page.wait_for_function(f"(prompts) => ({texts})() === prompts", arg=prompts, timeout=LONG)

    expect("one,two,three")
    page.page.wait_for_function(waits, timeout=LONG)
    page.page.locator(".job", has_text="three").get_by_role("button", name="Move up").focus()
    page.page.keyboard.press("Enter")
    expect("one,three,two")
    page.page.keyboard.press("Enter")
    expect("three,one,two")
    focused = page.page.evaluate("() => document.activeElement.ariaLabel")
    assert focused == "Move down", focused
    page.page.keyboard.press("Enter")
    expect("one,three,two")
    at_server = """async () => {
      const { jobs } = await (await fetch("v1/jobs")).json();
      const waiting = jobs.filter(({ status }) => status === "queued").sort((a, b) => a.position - b.position);
      return waiting.map(({ request }) => request.prompt).join() === "one,three,two";
    }"""
    page.page.wait_for_function(at_server, timeout=LONG)
    page.page.click("text=Cancel all")
    page.page.wait_for_selector("#queue", state="hidden", timeout=LONG)
    page.close()
