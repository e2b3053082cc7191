"""Errors name the solver that was decorated, and the tensor that was not passed."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradwright as gw
from gradwright.errors import ConvergenceError, GradwrightError, RuleError

F64 = torch.float64
ONE = torch.tensor(1.0, dtype=F64)
WEIGHT = torch.tensor(2.0, dtype=F64, requires_grad=True)
BOTH = {"solver of its own": lambda solve: solve, "decorated": lambda solve: solve(lambda z0, a: z0)}


def decorated(residual: Any, user: str = "root") -> Any:
    @getattr(gw.implicit, user)(residual)  # type: ignore[untyped-decorator]
    def crossing(z0: Tensor, a: Tensor) -> Tensor:
        return a / 2

    return crossing


@pytest.mark.parametrize("user", ["root", "fixed_point", "argmin"])
def test_the_solver_that_was_decorated_is_named(user: str) -> None:
    solve = decorated(lambda z, a: (z - a).square(), user)
    assert repr(solve) == f"<gw.implicit.{user}(<lambda>) by crossing>"
    name = rf"^crossing: gw\.implicit\.{user}\(<lambda>\): "
    with pytest.raises(GradwrightError, match=name + "the solver ended at"):
        solve(ONE, ONE.clone().requires_grad_()).backward()
    with pytest.raises(GradwrightError, match=name + "parameter 0 is a"):
        solve(ONE, nn.Linear(1, 1))
    with pytest.raises(GradwrightError, match=name):
        decorated(lambda z, a: torch.stack([z, z]), user)(ONE, ONE)


def test_the_solver_is_named_where_the_constraints_are_wrong() -> None:
    @gw.implicit.argmin(
        lambda z, a: (z - a).square().sum(), constraints=lambda z, a: torch.as_tensor(np.sum(z.numpy()))
    )
    def lowest(z0: Tensor, a: Tensor) -> Tensor:
        return z0

    with pytest.raises(RuleError, match=r"^lowest: gw\.implicit\.argmin\(<lambda>\): the constraints hands"):
        lowest(torch.ones(2, dtype=F64), ONE)


def test_a_solver_without_a_name_is_named_by_its_kind() -> None:
    solve = gw.implicit.root(lambda z, a: z - a)(functools.partial(lambda z0, a, k: z0 + k, k=1))
    assert repr(solve) == "<gw.implicit.root(<lambda>) by partial>"
    with pytest.raises(ConvergenceError, match=r"^partial: gw\.implicit\.root"):
        solve(ONE, ONE.clone().requires_grad_()).backward()


def uses() -> dict[str, tuple[Any, str]]:
    """Return functions that use a tensor that is not passed, and its name in them."""
    w = torch.tensor(2.0, dtype=F64, requires_grad=True)
    unused = torch.tensor(2.0, dtype=F64, requires_grad=True)
    constant, settings, several = ONE, types.SimpleNamespace(scale=w, other=unused), [w]
    network = nn.Linear(1, 1, dtype=F64)

    def helper(z: Tensor) -> Tensor:
        return z * w

    class Plain:
        gain = w

        def __init__(self) -> None:
            self.gain, self.other = w, unused

        def residual(self, z: Tensor, a: Tensor) -> Tensor:
            return z * self.gain - a

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(ONE.clone())
            self.gain = w * 1

        def forward(self, z: Tensor, a: Tensor) -> Tensor:
            return z * self.gain * self.weight - a

    return {
        "closure": (lambda z, a: z * w * constant - a, "w"),
        "global": (lambda z, a: z * WEIGHT - a, "WEIGHT"),
        "attribute of a closure": (lambda z, a: z * settings.scale - a, "settings.scale"),
        "container": (lambda z, a: z * several[0] - a, "several"),
        "within another function": (lambda z, a: helper(z) - a, "w"),
        "module": (lambda z, a: network(z.reshape(1, 1)).reshape(()) - a, "network"),
        "attribute": (Plain().residual, "self.gain"),
        "attribute of a module": (Module(), "self.gain"),
        "attribute of the owner of a method": (Module().forward, "self.gain"),
        "argument of partial": (functools.partial(lambda z, a, k: z * k - a, k=w), "k"),
        "positional argument of partial": (functools.partial(lambda k, z, a: z * k - a, w), "argument 0 of partial"),
    }


@pytest.mark.parametrize("kind", uses())
def test_a_tensor_that_is_not_passed_is_named(kind: str) -> None:
    function, name = uses()[kind]
    with pytest.raises(RuleError, match=rf"^crossing: .*without receiving it as an argument \(`{name}`\), so that"):
        decorated(function)(ONE, ONE)


def test_several_are_named_and_those_of_constraints_too() -> None:
    v, w = (torch.tensor(2.0, dtype=F64, requires_grad=True) for _ in range(2))
    with pytest.raises(RuleError, match=r"argument \(`v`, `w`\), so"):
        gw.implicit.root(lambda z, a: z * v + w - a)(ONE, ONE)
    with pytest.raises(RuleError, match=r"argument \(`w`\), so"):
        gw.implicit.argmin(lambda z, a: (z - a).square().sum(), constraints=lambda z, a: z.sum() - w)(ONE, ONE)


def test_what_cannot_be_seen_is_not_named() -> None:
    kept = {"w": WEIGHT}

    class Called:
        def __call__(self, z: Tensor, a: Tensor) -> Tensor:
            return z * kept["w"] - a

    with pytest.raises(RuleError, match="as an argument, so that"):
        gw.implicit.root(Called())(ONE, ONE)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: torch.func.grad(f)(ONE),
    "jacfwd": lambda f: torch.func.jacfwd(f)(ONE),
    "vmap": lambda f: torch.func.vmap(f)(torch.stack([ONE, ONE])),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f))(torch.stack([ONE, ONE])),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_tensor_that_a_transform_is_at_is_named(transform: str) -> None:
    for made in (decorated, gw.implicit.root):

        def around(w: Tensor, made: Any = made) -> Any:
            return made(lambda z, a: z * w - a)(ONE, ONE)

        with pytest.raises(RuleError, match=r"without receiving it as an argument \(`w`\), so"):
            TRANSFORMS[transform](around)


def test_those_of_a_linear_operator_are_named() -> None:
    w = torch.tensor(2.0, dtype=F64, requires_grad=True)

    def operator(x: Tensor) -> Tensor:
        return w * x

    with pytest.raises(RuleError, match=r"^operator: .* receiving it \(`w`\), so"):
        gw.implicit.linear_solve(operator)(ONE)

    @gw.implicit.linear_solve(operator)
    def halved(b: Tensor) -> Tensor:
        return b / 2

    with pytest.raises(RuleError, match=r"^halved: operator: .* receiving it \(`w`\), so"):
        halved(ONE)


def by_numpy(z: Tensor, a: Tensor) -> Tensor:
    return torch.as_tensor(np.tanh(z.numpy())) / 2 + a


@pytest.mark.parametrize("transform", ["grad", "jacfwd", "vmap of grad"])
@pytest.mark.parametrize("user", ["root", "fixed_point", "argmin", "linear_solve"])
@pytest.mark.parametrize("kind", BOTH)
def test_numpy_in_an_equation_is_named_under_transforms_too(transform: str, user: str, kind: str) -> None:
    solve = BOTH[kind](getattr(gw.implicit, user)(by_numpy))
    with pytest.raises(RuleError, match=rf"gw\.implicit\.{user}\(by_numpy\): the \w+ hands a tensor to NumPy"):
        TRANSFORMS[transform](lambda a: solve(ONE, a))


def test_a_batch_of_values_may_come_from_numpy() -> None:
    solve, a = gw.implicit.fixed_point(by_numpy), torch.tensor([0.1, 0.2], dtype=F64)
    torch.testing.assert_close(
        torch.func.vmap(lambda a: solve(ONE, a))(a), torch.stack([solve(ONE, each) for each in a])
    )
