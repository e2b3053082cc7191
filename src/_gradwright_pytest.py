"""The pytest plugin: a failing assertion about a gradwright report shows the whole report.

pytest loads this module in every run of everyone who has gradwright installed, so it imports neither torch nor
gradwright: if a test made a report, gradwright is loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any

import pytest


# The older form of a wrapper, because pytest before version 8 does not know the newer one.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add a section with each failed gradwright report that the failing frames hold."""
    outcome = yield
    if call.excinfo is None or not issubclass(call.excinfo.type, AssertionError):
        return
    sections = outcome.get_result().sections
    for report in _failed_reports(call.excinfo.tb):
        sections.append(("gradwright", str(report)))


def _failed_reports(traceback: TracebackType | None) -> Iterator[Any]:
    """Yield each failed report among the locals of the frames once, outermost frame first.

    In ``assert gw.check(f, x)`` the report has no name; pytest's rewriting of assertions leaves it in a temporary.
    """
    module = sys.modules.get("gradwright.checking.report")
    if module is None:
        return
    seen = set()
    while traceback is not None:
        for value in list(traceback.tb_frame.f_locals.values()):
            # type(), not isinstance(): other people's objects may answer `__class__` with code of their own.
            if issubclass(type(value), module.Report) and id(value) not in seen and not value:
                seen.add(id(value))
                yield value
        traceback = traceback.tb_next
