"""A real browser without a window: Debian's Chromium, driven by Selenium.

Owns: its start, its width, and what it has complained about.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from foreign_servers.deadlines import scale

WAIT_SECONDS_MAX = scale(60.0)
POLL_SECONDS = 0.05
HEIGHT = 900

T = TypeVar("T")


def why_not() -> str:
    """Return why there is no browser here; empty if there is one."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return ""
    return "Chromium and its driver (Debian's chromium and chromium-driver) are not installed"


class Browser:
    """A window of a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        # Not all of its methods have types.
        self.driver: Any = driver

    def show(self, address: str, width: int, *, dark: bool = False) -> None:
        """Load a page at a width, in pixels."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = "dark" if dark else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        self.driver.get(address)

    def run(self, script: str) -> Any:
        """Return what a script returns on the page."""
        return self.driver.execute_script(script)

    def find(self, selector: str) -> Any:
        """Return the first element of a selector, when it is there."""
        return self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, selector))[0]

    def text(self, selector: str = "main") -> str:
        """Return the text of the first element of a selector."""
        return str(self.run(f"return document.querySelector({selector!r})?.innerText ?? ''"))

    def wait(self, condition: Callable[[], T]) -> T:
        """Return the result of a condition, once it is true."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not in time; the page is:\n{self.text('body')}"
            time.sleep(POLL_SECONDS)
        return found

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def complaints(self) -> list[str]:
        """Return the errors and warnings since the last call: of scripts, files and policies."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def shoot(self, path: Path) -> None:
        """Store a picture of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return window.innerWidth")
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.save_screenshot(str(path))


@contextmanager
def open_browser(directory: Path) -> Iterator[Browser]:
    """Yield a browser whose profile is in a directory."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for each in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(each)
    options.add_argument(f"--user-data-dir={directory}")
    if os.geteuid() == 0:
        # Chromium refuses to shut root into its sandbox; the pages are ours.
        options.add_argument("--no-sandbox")
    # Servers have certificates of an authority that the browser does not know.
    options.accept_insecure_certs = True
    options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
