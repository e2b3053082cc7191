"""The pytest plugin: a failing assertion about a gradwright report shows the whole report; ``pytest --gradwright``
checks what a suite uses; ``@pytest.mark.gradwright`` says how.

pytest loads this module in every run of everyone who has gradwright installed, so it imports neither torch nor
gradwright: if a test made a report, gradwright is loaded already. What only ``--gradwright`` needs is in
:mod:`gradwright.cli.pytest_session`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import pytest

MARKER = (
    "gradwright(level, only, skip, require, seed, watch): what gradwright.check does in the test where a call does not "
    "say; watch=False: --gradwright does not record what the test calls"
)
OPTIONS = ("level", "only", "skip", "require", "seed", "watch")
LISTS = ("collectonly", "help", "version", "markers", "showfixtures", "show_fixtures_per_test")
"""Options with which pytest runs no test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; what they mean in detail is known where they are used."""
    add = parser.getgroup("gradwright", "custom gradients").addoption
    add("--gradwright", action="store_true", help="record the custom gradients that the tests use, and check them")
    add("--gradwright-fail", action="store_true", help="findings fail the run")
    add(
        "--gradwright-level",
        choices=("quick", "standard", "full"),
        default="quick",
        help="how much work to do (default: quick)",
    )
    for name, what in (("include", "only"), ("exclude", "not")):
        text = f"{what} these: a name, or a pattern; may be repeated"
        add(f"--gradwright-{name}", action="append", default=[], metavar="NAME", help=text)
    for name, what in (
        ("json", "the verdicts as JSON"),
        ("html", "the verdicts as one HTML page"),
        ("junit", "the verdicts as JUnit XML"),
        ("sarif", "the findings as SARIF"),
        ("markdown", "the report as Markdown"),
    ):
        add(f"--gradwright-{name}", metavar="FILE", help=f"write {what}")
    add("--gradwright-store", metavar="DIR", help="write the calls that were kept, for `gradwright check` later")
    add("--gradwright-baseline", metavar="FILE", help="do not count the findings that this file lists")
    add("--gradwright-update-baseline", action="store_true", help="write what was found into that file")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before any code of the suite is run."""
    _begin(early_config, early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; begin, if this plugin was loaded too late for the hook above."""
    config.addinivalue_line("markers", MARKER)
    _begin(config, config.option)
    if config.pluginmanager.has_plugin("gradwright-watch") and not _has_torch():
        raise pytest.UsageError(
            "--gradwright: PyTorch is not installed; expected it beside gradwright, which never installs one by "
            "itself; install it with `pip install torch`."
        )


def _begin(config: pytest.Config, options: Any) -> None:
    runs = not any(getattr(options, name, False) for name in LISTS)
    if getattr(options, "gradwright", False) and runs and not config.pluginmanager.has_plugin("gradwright-watch"):
        from gradwright.cli.pytest_session import Watch

        config.pluginmanager.register(Watch(config), "gradwright-watch")


def _has_torch() -> bool:
    return sys.modules.get("torch") is not None or importlib.util.find_spec("torch") is not None


# The older form of a wrapper, because pytest before version 8 does not know the newer one.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Run a test, its fixtures included, under what its markers say."""
    options: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("gradwright"))):  # the closest one wins
        options.update({name: value for name, value in marker.kwargs.items() if name in OPTIONS})
    watch = item.config.pluginmanager.get_plugin("gradwright-watch")
    with ExitStack() as stack:
        if options.pop("watch", True) is False and watch is not None:
            stack.enter_context(watch.leaving_out())
        if options:
            from gradwright.checking.defaults import defaults

            stack.enter_context(defaults(**options))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test with a marker that says nothing."""
    for marker in item.iter_markers("gradwright"):
        wrong = [repr(value) for value in marker.args] + [name for name in marker.kwargs if name not in OPTIONS]
        if wrong:
            expected = ", ".join(f"{name}=" for name in OPTIONS)
            pytest.fail(
                f"@pytest.mark.gradwright: got {wrong[0]}; expected some of {expected}; correct it.", pytrace=False
            )


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
