"""Equations of modules are modules: what is in them is trained, saved, copied and moved."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradwright as gw
from gradwright.checking.subject import as_subject
from gradwright.errors import DefinitionError, RuleError

F64 = torch.float64
CHEAP = ("matches-differences", "matches-surrogate", "modes-agree", "inputs-untouched")


class Cell(nn.Module):
    """A contraction, as a function for a fixed point."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=F64)
        self.register_buffer("scale", torch.tensor(0.4, dtype=F64))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.scale * self.layer(z) + x)


class Residual(Cell):
    """The same as an equation."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return z - super().forward(z, x)


class Energy(Cell):
    """An objective with a minimum."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return (z - x).square().sum() + (self.scale * self.layer(z)).square().sum()


class Sum(nn.Module):
    """A constraint."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(3, dtype=F64))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return (self.weights * z).sum().reshape(1) - 1


class Spread(Cell):
    """A matrix."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * (x @ self.layer.weight)


CELL = ["layer.weight", "layer.bias"]
MADE: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "root": (lambda: gw.implicit.root(Residual()), [f"residual.{name}" for name in CELL]),
    "fixed_point": (lambda: gw.implicit.fixed_point(Cell()), [f"function.{name}" for name in CELL]),
    "argmin": (
        lambda: gw.implicit.argmin(Energy(), constraints=Sum()),
        [*[f"objective.{name}" for name in CELL], "constraints.weights"],
    ),
    "argmin with a function": (
        lambda: gw.implicit.argmin(functools.partial(torch.nn.functional.mse_loss), constraints=Sum()),
        ["constraints.weights"],
    ),
    "linear_solve": (lambda: gw.implicit.linear_solve(Spread()), [f"matvec.{name}" for name in CELL]),
}


class Network(nn.Module):
    """A layer that is the solution of an equation."""

    def __init__(self, solve: Any) -> None:
        super().__init__()
        self.solve = solve

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.solve, gw.implicit.linear.LinearSolve):
            return self.solve(x)  # type: ignore[no-any-return]
        return self.solve(torch.zeros_like(x), x)  # type: ignore[no-any-return]


@gw.implicit.fixed_point(Cell())
def iterated(z0: Tensor, x: Tensor) -> Tensor:
    """Iterate."""
    return _iterate(iterated, z0, x)


def _iterate(solve: Any, z: Tensor, x: Tensor) -> Tensor:
    for _ in range(100):
        z = solve.function(z, x)
    return z


@gw.implicit.linear_solve(Spread())
def solved(b: Tensor) -> Tensor:
    """Solve."""
    found: Tensor = torch.linalg.solve(torch.stack([solved.matvec(unit) for unit in torch.eye(3, dtype=F64)], 1), b)
    return found


MADE["fixed_point of a solver"] = (lambda: copy.deepcopy(iterated), MADE["fixed_point"][1])
MADE["linear_solve of a solver"] = (lambda: copy.deepcopy(solved), MADE["linear_solve"][1])


def somewhere() -> Tensor:
    return torch.tensor([0.3, -0.2, 0.9], dtype=F64)


@pytest.mark.parametrize("kind", MADE)
def test_the_parameters_of_the_module_are_those_of_the_network_around_it(kind: str) -> None:
    made, names = MADE[kind]
    network = Network(made())
    assert [name for name, _ in network.named_parameters()] == [f"solve.{name}" for name in names]
    if "bias" not in str(names):
        return
    buffer = names[0].replace("layer.weight", "scale")
    assert set(network.state_dict()) == {f"solve.{name}" for name in [*names, buffer]}
    before = network.solve.get_parameter(names[0]).detach().clone()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(somewhere()).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, network.solve.get_parameter(names[0]))
    network.solve.load_state_dict({**network.solve.state_dict(), names[0]: before})
    assert torch.equal(before, network.solve.get_parameter(names[0]))


@pytest.mark.parametrize("kind", [kind for kind, (_, names) in MADE.items() if len(names) > 1])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_it_can_be_copied_and_pickled_with_its_weights(kind: str, how: str) -> None:
    made, names = MADE[kind]
    network, x = Network(made()).eval(), somewhere()
    network.solve.note = "kept"
    before = network(x)
    other = copy.deepcopy(network) if how == "deepcopy" else pickle.loads(pickle.dumps(network))
    assert not any(part.training for part in other.modules())
    assert other.solve.note == "kept"
    value = other.solve.get_parameter(names[0])
    assert torch.equal(value, network.solve.get_parameter(names[0]))
    if "of a solver" in kind:  # it looks at the weights of the original
        return
    with torch.no_grad():
        network.solve.get_parameter(names[0]).zero_()
    assert torch.equal(other(x), before)
    assert not torch.equal(network(x), before)
    (slope,) = torch.autograd.grad(other(x).square().sum(), value)
    assert slope.abs().sum() > 0


def test_a_decorated_solver_takes_its_weights_with_it() -> None:
    for solve, name in ((iterated, "function.layer.weight"), (solved, "matvec.layer.weight")):
        again = pickle.loads(pickle.dumps(solve))
        assert again is not solve
        assert again.__wrapped__ is solve.__wrapped__
        assert torch.equal(again.get_parameter(name), solve.get_parameter(name))
        assert again.get_parameter(name) is not solve.get_parameter(name)
        assert (solve.__doc__, again.__name__) == (solve.__wrapped__.__doc__, solve.__name__)
    x = somewhere().requires_grad_()
    torch.testing.assert_close(iterated(torch.zeros_like(x), x), iterated.function(iterated(torch.zeros_like(x), x), x))
    torch.testing.assert_close(iterated.function.scale * 0, torch.zeros((), dtype=F64))
    torch.testing.assert_close(solved.matvec(solved(x)), x)


def test_it_moves_between_dtypes_and_modes_with_what_is_around_it() -> None:
    network = Network(gw.implicit.fixed_point(Cell()))
    assert network.float()(somewhere().float()).dtype is torch.float32
    assert network.double()(somewhere()).dtype is F64
    assert not network.eval().solve.function.training
    assert network.train().solve.function.training
    assert network.to("cpu").requires_grad_(False)(somewhere()).grad_fn is None
    assert "gw.implicit.fixed_point(Cell)" in repr(network)
    assert "(function): Cell(" in repr(network)


def test_hooks_run_and_transforms_see_other_parameters() -> None:
    solve, x = gw.implicit.fixed_point(Cell()), somewhere()
    assert isinstance(solve, nn.Module)
    seen: list[Any] = []
    solve.register_forward_hook(lambda module, args, out: seen.append(out))
    z = solve(torch.zeros_like(x), x)
    assert seen == [z]
    weights = {name: value.detach() for name, value in solve.named_parameters()}
    found = torch.func.grad(
        lambda weights: torch.func.functional_call(solve, weights, (torch.zeros_like(x), x)).square().sum()
    )(weights)
    z.square().sum().backward()
    torch.testing.assert_close(found["function.layer.weight"], solve.function.layer.weight.grad)  # type: ignore[union-attr]


class Owner(nn.Module):
    """A module that is the equation itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3, dtype=F64) / 4)
        self.solve = gw.implicit.root(self.residual)

    def residual(self, z: Tensor, x: Tensor) -> Tensor:
        return z + torch.tanh(self.weight @ z) - x

    def forward(self, x: Tensor) -> Tensor:
        return self.solve(torch.zeros_like(x), x)  # type: ignore[no-any-return]


def test_a_method_stays_a_function_since_its_module_would_be_put_into_itself() -> None:
    owner = Owner()
    assert not isinstance(owner.solve, nn.Module)
    assert list(owner.state_dict()) == ["weight"]
    assert copy.deepcopy(owner).float().eval()(somewhere().float()).dtype is torch.float32


@pytest.mark.parametrize("kind", ["fixed_point", "linear_solve"])
@pytest.mark.parametrize("use", [lambda m: m.eval(), lambda m: m.float(), lambda m: m.state_dict()])
def test_a_module_within_itself_is_refused_where_torch_would_never_end(kind: str, use: Callable[[Any], Any]) -> None:
    class Itself(Cell if kind == "fixed_point" else Spread):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.solve = getattr(gw.implicit, kind)(self)

    with pytest.raises(DefinitionError, match=rf"within itself.*write gw\.implicit\.{kind}\(self\.forward\)"):
        use(Itself())


@pytest.mark.parametrize("kind", MADE)
def test_a_module_that_was_replaced_is_refused(kind: str) -> None:
    made, names = MADE[kind]
    solve = made()
    what = names[-1].partition(".")[0]
    setattr(solve, what, copy.deepcopy(getattr(solve, what)))
    with pytest.raises(RuleError, match=rf"its module '{what}' was replaced"):
        Network(solve)(somewhere())


def test_a_function_stays_a_function() -> None:
    for solve in (gw.implicit.root(lambda z, t: z - t), gw.implicit.linear_solve(lambda x: 2 * x)):
        assert not isinstance(solve, nn.Module)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of the compiler's own
def test_torch_compile_leaves_the_graph_for_it() -> None:
    network, x = Network(gw.implicit.fixed_point(Cell())), somewhere()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * network(torch.sin(x)), backend="aot_eager")
    torch.testing.assert_close(compiled(x), 2 * network(torch.sin(x)))


@pytest.mark.parametrize("backward", ["exact", "one-step", "neumann"])
def test_a_check_sees_a_module_with_its_parameters(backward: Any) -> None:
    solve = gw.implicit.fixed_point(Cell(), backward=backward)
    report = gw.check(solve, torch.zeros(3, dtype=F64), somewhere(), level="quick", only=CHEAP)
    assert report, report
    text = str(report)
    assert "function.layer.weight: float64 (3, 3)" in text
    assert "test_modules.py" in text


def test_a_check_names_what_the_user_wrote() -> None:
    assert (as_subject(gw.implicit.root(Residual())).name, as_subject(iterated).name) == ("Residual", "iterated")
    assert as_subject(iterated).signature == "(z0, x)"
    assert as_subject(solved).name == "solved"
    assert as_subject(gw.implicit.linear_solve(Spread())).name == "Spread"
    assert {as_subject(solve).kind for solve in (iterated, solved)} == {"module"}
