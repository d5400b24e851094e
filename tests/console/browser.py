"""Headless Chromium of the distribution, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

#: Widths of a screen and of a phone.
SIZES = ((1280, 900), (390, 844))
WAIT_MS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium for a `with` block; skip the test without one."""
    # The shell has no windows: a page costs 0.2 s of CPU, 1.4 s in Chromium.
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium: install the distribution's package chromium-headless-shell")
    # Containers have no user namespaces for the sandbox, and a small /dev/shm.
    options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=options)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, size: tuple[int, int], colours: str
) -> Iterator[tuple[Page, list[str]]]:
    """Open a page of a size, `light` or `dark`, with the list of its errors."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if colours == "dark" else "light",
    )
    errors: list[str] = []
    try:
        yield another(context, errors), errors
    finally:
        context.close()


def another(context: BrowserContext, errors: list[str]) -> Page:
    """Open one more page of a browser's context, whose errors go to the list."""
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    return page


def press(page: Page, text: str) -> None:
    """Press the button or follow the link in the content of a page; wait for the next page."""
    with page.expect_navigation():
        page.locator("main").locator(f"a:text-is('{text}'), button:text-is('{text}')").click()


def shown(page: Page, text: str) -> None:
    """Wait until the content of the page has a text."""
    page.locator("main", has_text=text).wait_for()


def violations(page: Page) -> list[str]:
    """Return the accessibility rules of axe-core that the page violates, each with an element."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]}" for each in found]
