"""How large the HTML report of many subjects is, and how soon a browser shows it.

Forty subjects of the list of defects, each broken one beside its correct twin, are checked at level quick. The page is
loaded by a headless Chromium several times, each time anew, and the median counts; the time is that of the browser
itself, from the start of the navigation to the end of the load event and to the first paint.

    python benchmarks/html_page.py                   # everything
    python benchmarks/html_page.py --quick           # that it runs: few subjects, one load
    python benchmarks/html_page.py --write           # puts table and picture into docs/reports.md
    python benchmarks/html_page.py --json FILE       # writes rows of figures
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from _pages import table_of, write_tables  # noqa: E402

import gradwright as gw  # noqa: E402
from gradwright.checking.report import Entry  # noqa: E402
from gradwright.reporting.html import write_html  # noqa: E402
from tests.defects.entries import all_defects  # noqa: E402
from tests.reporting.browser import Browser, browser, missing  # noqa: E402

PAGE = ROOT / "docs" / "reports.md"
PICTURE = ROOT / "docs" / "pictures" / "report.webp"
SUBJECTS, LOADS = 40, 5
MOST_BYTES, MOST_SECONDS = 2_000_000, 1.0
SHOWN = (1280, 1040)
"""Width and height of the picture, in pixels."""
TIMES = """
const [load] = performance.getEntriesByType("navigation");
const paint = performance.getEntriesByName("first-contentful-paint")[0];
return load.loadEventEnd > 0 && paint ? [load.loadEventEnd / 1000, paint.startTime / 1000] : null;
"""
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few subjects, one load")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    parser.add_argument("--write", action="store_true", help="put table and picture into docs/reports.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        entries = list(checked(6 if options.quick else SUBJECTS))
        page = write_html(entries, Path(folder) / "report.html")
        rows = [row(f"page of {len(entries)} subjects", page.stat().st_size / 1e6, "MB", MOST_BYTES / 1e6)]
        if missing() is None:
            with browser() as running:
                rows += loads(running, page, 1 if options.quick else LOADS)
                if options.write:
                    PICTURE.parent.mkdir(exist_ok=True)
                    PICTURE.write_bytes(picture(running, page))
        else:
            print(f"not loaded: {missing()}")
    for figure in rows:
        met = "met" if figure["met"] else "NOT met"
        print(f"{figure['name']}: {figure['value']:.3g} {figure['unit']} {figure['goal']} {met}")
    if options.write:
        write_tables(PAGE, {"page": table_of(rows)})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def checked(number: int) -> Iterator[Entry]:
    """Check subjects from all over the list of defects, broken and right ones in turns."""
    usable = [entry for entry in all_defects() if entry.raises is None and entry.twin is not None]
    step = len(usable) / (number / 2)
    for entry in (usable[int(i * step)] for i in range(number // 2)):
        for which in ("broken", "twin"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the subjects are made to be odd; PyTorch warns of some
                given = {**entry.options(), "level": "quick"}
                yield gw.check(entry.subject(which), *entry.arguments(which), seed=3, **given)


def loads(running: Browser, page: Path, number: int) -> list[Row]:
    """Load the page several times and return the medians."""
    running.resize(1280)
    times = []
    for _ in range(number):
        running.open(page)
        times.append(running.until(TIMES))
    names = ("until it is loaded", "until the first paint")
    return [row(name, statistics.median(found), "s", MOST_SECONDS) for name, found in zip(names, zip(*times))]


def picture(running: Browser, page: Path) -> bytes:
    """Return the upper part of the page as a WebP."""
    width, height = SHOWN
    running.resize(width, height)
    running.prefer("light")
    running.open(page)
    return base64.b64decode(
        running.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 85})["data"]
    )


def row(name: str, value: float, unit: str, most: float) -> Row:
    goal = f"< {most:g} {unit}"
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "against": None,
        "ratio": None,
        "goal": goal,
        "met": value < most,
    }


if __name__ == "__main__":
    sys.exit(main())
