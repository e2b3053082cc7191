"""Every adopted Function, and the same with the base ``gw.Function``, passes a full check."""

from __future__ import annotations

from typing import Any

import pytest

import gradwright as gw
from tests.authoring.old_functions import OLD_FUNCTIONS, OldFunction
from tests.authoring.test_function import rebased


def arguments(old: OldFunction) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a Function is called with."""
    given: list[Any] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        given.extend((args, kwargs))
        return old.inputs[0]

    old.call(called, *old.inputs)
    return given[0], given[1]


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [gw.adopt, rebased])
@pytest.mark.parametrize("old", OLD_FUNCTIONS, ids=lambda o: o.name)
def test_passes_a_full_check(old: OldFunction, make: Any) -> None:
    args, kwargs = arguments(old)
    report = gw.check(make(old.function), *args, kwargs=kwargs, surrogate=old.surrogate, level="full")
    # Where a tensor is kept is looked at in classes only.
    expected = old.faults if make is rebased else old.faults - {"saved-through-hooks"}
    assert {result.id for result in report.results if result.verdict == "fail"} == expected, str(report)
    assert not report.ended
    compared = "matches-differences" if old.surrogate is None else "matches-surrogate"
    assert report[compared].verdict == "pass"


@pytest.mark.parametrize("make", [gw.adopt, rebased])
@pytest.mark.parametrize("name", ["SavesIntermediate", "RoundSTE", "TwoPartOnce", "NotMaterialised", "NumpySquare"])
def test_passes_a_quick_check(name: str, make: Any) -> None:
    """Some of them, every time."""
    old = next(o for o in OLD_FUNCTIONS if o.name == name)
    args, kwargs = arguments(old)
    report = gw.check(make(old.function), *args, kwargs=kwargs, surrogate=old.surrogate, level="quick")
    assert report, str(report)
