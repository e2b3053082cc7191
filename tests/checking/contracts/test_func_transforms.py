"""func-transforms: torch.func by value against eager autograd, refusals by transform."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, NewStyleScale, variant, x

ALL = {"vjp", "grad", "jacrev", "jvp", "jacfwd", "grad of grad", "hessian"}


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="func-transforms", seed=0)["func-transforms"]


def verdicts(found: ContractResult) -> dict[str, str]:
    return {row.transform: row.verdict for row in found.support}


class Square(Function):
    """With every rule there is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return a * a

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 2 * t * ctx.saved_tensors[0]


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Square, (x(3),)),
        (torch.sin, (x(2, 2),)),
        (torch.sin, (torch.tensor(0.5, dtype=torch.float64),)),
        (torch.nn.functional.linear, (x(2, 3), x(4, 3), x(4))),
        (torch.nn.Linear(3, 2), (torch.randn(2, 3),)),
        (torch.nn.Dropout(0.5), (x(5),)),
        (lambda a, b: (a.sin() * b, a + b), (x(3), x(3, seed=1))),
        (torch.nn.functional.softmax, (x(3), -1)),
        (torch.relu, (torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64),)),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message
    assert set(verdicts(found)) == ALL


def test_old_style_is_refused_everywhere() -> None:
    found = result(Exp, x(3))
    assert found.verdict == "unsupported"
    assert "setup_context" in found.message
    assert set(verdicts(found).values()) == {"unsupported"}


def test_a_missing_jvp_is_refused_and_the_rest_compared() -> None:
    found = result(variant(NewStyleScale, "Vmapped"), x(3))
    assert found.verdict == "unsupported"
    passing = {name for name, verdict in verdicts(found).items() if verdict == "pass"}
    assert passing == {"vjp", "grad", "jacrev", "grad of grad"}


def test_large_and_complex_samples_build_no_matrix() -> None:
    found = result(torch.sin, x(100))
    assert found.verdict == "pass"
    assert verdicts(found)["hessian"] == "skipped"
    assert verdicts(result(lambda z: z * z, torch.randn(3, dtype=torch.complex128)))["jacrev"] == "skipped"
    assert result(ComplexSquare, torch.randn(3, dtype=torch.complex128)).verdict == "unsupported"


def test_a_rule_that_is_another_under_torch_func_is_accused() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0] * (2 if torch._C._functorch.maybe_current_level() is not None else 1)

    found = result(variant(Square, "Other", backward=backward), x(3))
    assert found.verdict == "fail"
    assert "under torch.func" in found.message
    assert "another path" in (found.findings[0].hint or "")


def test_once_differentiable_gives_zero_twice_and_that_is_said() -> None:
    """torch 2.13 gives 0 for the second derivative instead of raising; when this fails it has been mended."""
    once = variant(Square, "Once", backward=once_differentiable(Square.backward))
    one = torch.ones((), dtype=torch.float64)
    assert torch.func.grad(torch.func.grad(once.apply))(one) == 0
    found = result(once, x(3))
    assert found.verdict == "unsupported"
    assert "silently gives 0" in found.message
    assert verdicts(found)["grad of grad"] == "unsupported"


def test_pytorch_against_itself_is_not_decided() -> None:
    """torch 2.13 gives a wrong Hessian of layer norm (vmap over its backward); when this fails it has been mended."""
    found = result(torch.nn.functional.layer_norm, x(2, 3), (3,), x(3), x(3, seed=1))
    assert found.verdict == "unresolved"
    assert "no rule of your own is involved" in found.message
    assert verdicts(found)["grad of grad"] == "pass"
