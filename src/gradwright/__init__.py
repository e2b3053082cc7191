"""Hand-written gradients for PyTorch that are proven, compose, and run fast.

``check`` gives a verdict with reasons on every part of the contract of a custom gradient::

    import gradwright as gw

    assert gw.check(MyExp, x)

Names are loaded on first use, so that ``import gradwright`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradwright.errors import ExternalError as ExternalError
from gradwright.errors import GradwrightError as GradwrightError

if TYPE_CHECKING:
    from gradwright import fused as fused
    from gradwright import implicit as implicit
    from gradwright import stable as stable
    from gradwright import ste as ste
    from gradwright.authoring.adopt import adopt as adopt
    from gradwright.authoring.constructors import define as define
    from gradwright.authoring.constructors import elementwise as elementwise
    from gradwright.authoring.constructors import surrogate as surrogate
    from gradwright.authoring.decorator import custom_gradient as custom_gradient
    from gradwright.authoring.function import Function as Function
    from gradwright.checking.report import Report as Report
    from gradwright.checking.run import check as check
    from gradwright.checking.samples import Sample as Sample
    from gradwright.wrapping.derivatives import fd as fd
    from gradwright.wrapping.derivatives import spsa as spsa
    from gradwright.wrapping.executable import executable as executable
    from gradwright.wrapping.external import external as external
    from gradwright.wrapping.jax import from_jax as from_jax
    from gradwright.wrapping.kept import save as save
    from gradwright.wrapping.native import native as native
    from gradwright.wrapping.outputs import like as like
    from gradwright.wrapping.outputs import spec as spec

__version__ = "0.1.0"

_LAZY = {
    "check": "gradwright.checking.run",
    "Report": "gradwright.checking.report",
    "Sample": "gradwright.checking.samples",
    "Function": "gradwright.authoring.function",
    "adopt": "gradwright.authoring.adopt",
    "custom_gradient": "gradwright.authoring.decorator",
    "define": "gradwright.authoring.constructors",
    "elementwise": "gradwright.authoring.constructors",
    "executable": "gradwright.wrapping.executable",
    "external": "gradwright.wrapping.external",
    "fd": "gradwright.wrapping.derivatives",
    "from_jax": "gradwright.wrapping.jax",
    "like": "gradwright.wrapping.outputs",
    "native": "gradwright.wrapping.native",
    "save": "gradwright.wrapping.kept",
    "spec": "gradwright.wrapping.outputs",
    "spsa": "gradwright.wrapping.derivatives",
    "surrogate": "gradwright.authoring.constructors",
}

_PACKAGES = ("fused", "implicit", "stable", "ste")
"""Loaded when they are used."""

__all__ = [
    "ExternalError",
    "Function",
    "GradwrightError",
    "Report",
    "Sample",
    "__version__",
    "adopt",
    "check",
    "custom_gradient",
    "define",
    "elementwise",
    "executable",
    "external",
    "fd",
    "fused",
    "implicit",
    "like",
    "native",
    "save",
    "spec",
    "spsa",
    "stable",
    "ste",
    "surrogate",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"gradwright.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'gradwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
