"""A headless Chromium for tests and benchmarks of the HTML report, where one is installed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str | None:
    """Say what is missing to drive a browser, or return None."""
    if not any(map(shutil.which, NAMES)):
        return "no chromium is installed"
    if shutil.which("chromedriver") is None:
        return "no chromedriver is installed"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    return None


class Browser:
    """One browser window; every page is a file."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a page anew, also when only the fragment differs."""
        self.driver.get("about:blank")
        self.driver.get(path.as_uri() + fragment)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        """Return the first element that a CSS selector names."""
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a CSS selector names and that are shown."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent).map(e => e.textContent)",
            selector,
        )

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def resize(self, width: int, height: int = 900) -> None:
        """Make the page so many CSS pixels large; a window could not be as narrow as a telephone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """Return what the console has said since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last time."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def until(self, script: str, seconds: float = 5.0) -> Any:
        """Return what a script returns, once that is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)
        return value


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, NAMES)))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for option in OPTIONS:
            options.add_argument(option)
        options.add_argument(f"--user-data-dir={profile}")
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium refuses to run as root with one
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
