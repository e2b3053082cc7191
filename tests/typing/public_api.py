"""What a type checker must understand about the public interface. Checked by mypy and pyright, never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from typing_extensions import assert_type

import gradwright as gw
from gradwright.typing import Level, Verdict


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def checking(function: type[torch.autograd.Function], module: torch.nn.Module, x: torch.Tensor) -> None:
    assert_type(gw.check(square, x), gw.Report)
    assert_type(gw.check(function, x, 2, kwargs={"scale": 2.0}), gw.Report)
    assert_type(gw.check(module, x, level="quick", seed=3), gw.Report)
    assert_type(gw.check(square, x, surrogate=square, only=("second-order",), skip=["linear-in-cotangent"]), gw.Report)
    gw.check(square, x, level="thorough")  # type: ignore[arg-type]


class Doubled(gw.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return 2 * g


@gw.custom_gradient
def scaled(x: torch.Tensor, *, k: float = 2.0) -> torch.Tensor:
    return k * x


@scaled.vjp
def scaled_vjp(g: torch.Tensor, k: float) -> torch.Tensor:
    return g * k


@gw.custom_gradient(double_backward="once", nondiff=("w",))
def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x * w, 3


def writing(x: torch.Tensor) -> None:
    assert_type(scaled(x, k=3.0), torch.Tensor)
    assert_type(both(x, x), tuple[torch.Tensor, int])
    assert_type(scaled_vjp(x, 2.0), torch.Tensor)
    assert_type(gw.define(square, vjp=lambda g, x: 2 * g * x)(x), torch.Tensor)
    assert_type(gw.elementwise(square, derivative=lambda x: 2 * x)(x), torch.Tensor)
    assert_type(gw.surrogate(square, through=square)(x), torch.Tensor)
    gw.adopt(Doubled)(x=x)
    Doubled.apply(x)
    gw.adopt(square)  # type: ignore[arg-type]
    scaled(x, 3.0)  # type: ignore[call-arg]
    scaled(x, k="3")  # type: ignore[arg-type]
    scaled()  # type: ignore[call-arg]
    gw.custom_gradient(vmap="loop")  # type: ignore[call-overload]
    gw.check(scaled, x)


def reading(report: gw.Report) -> None:
    assert_type(report.ok, bool)
    assert_type(bool(report), bool)
    assert_type(str(report), str)
    assert_type(report.level, Level)
    assert_type(report.verdict, Verdict)
    assert_type(report["second-order"].verdict, Verdict)
    assert_type([finding.message for finding in report.findings], list[str])
    assert_type(report.to_json(), str)
    assert_type(report.to_html("report.html"), Path)


def sampling(x: torch.Tensor) -> gw.Sample:
    return gw.Sample(args=(x,), kwargs={"k": 2}, surrogate=square, name="small")


def failing() -> None:
    error: type[Exception] = gw.GradwrightError
    raise error("name: what happened; what was expected; what to do")
