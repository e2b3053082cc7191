"""What people see of the package itself."""

from __future__ import annotations

import types

import pytest

import gradwright as gw
from gradwright.authoring.catalogue import entries


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gelu", "gelu_linear"), ("cross_entropy", "linear_cross_entropy"), ("rms_nrm", "rms_norm")],
)
def test_a_name_that_is_not_there_leads_to_one_that_is(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"Did you mean '{meant}'"):
        getattr(gw.fused, name)


def test_what_is_listed_is_for_users() -> None:
    """``help`` goes by ``__all__``: every function of the catalogue, and no module."""
    listed = gw.fused.__all__  # type: ignore[attr-defined]
    assert {entry.name.partition(".")[2] for entry in entries(gw.fused)} <= set(listed)
    assert not [name for name in listed if isinstance(getattr(gw.fused, name), types.ModuleType)]
