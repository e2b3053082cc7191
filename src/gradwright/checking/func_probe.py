"""The transforms of torch.func on one case, contracted with random vectors, and what eager autograd gives for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.differences import signed
from gradwright.checking.judge import one_unit_away
from gradwright.checking.magnitudes import CANCELLED, Magnitudes
from gradwright.checking.second import FirstOrderOnlyError, double_backward, double_backward_at
from gradwright.checking.tensors import from_flat
from gradwright.checking.transforms import (
    SPREAD_DRAWS,
    Result,
    function_of,
    inner_product,
    leaves,
    observe,
    spread,
)
from gradwright.checking.trials import refusal

NOTHING = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class Reference:
    """What eager autograd gives, why it gives nothing, and by how much it moves with the rounding of the inputs."""

    result: Result | None
    scatter: Callable[[], Result]
    refusal: str = ""
    noun: str = "the value"


class FuncProbe:
    """The transforms of one case, each contracted with the same random vectors."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.function = function_of(case)
        self.v = random_cotangent(case, "func v")
        self.cotangents = tuple(case.cotangents(self.v))
        self.u = [signed(n, case.generator(f"func u {k}")) for k, n in enumerate(case.n)]
        self.tangents = tuple(from_flat(u, item.tensor) for u, item in zip(self.u, case.inputs))
        self.real = not any(t.is_complex() for t in (*self.cotangents, *self.tangents))
        self.every = tuple(range(len(case.inputs)))

    def inputs(self) -> list[Tensor]:
        """Return fresh inputs that do not require grad."""
        return [leaf.detach() for leaf in leaves(self.case)]

    def scalar(self, *tensors: Tensor) -> Tensor:
        """The loss: the inner product of the outputs with the cotangents."""
        return inner_product(self.function(*tensors), self.cotangents)

    def gradients(self, values: Sequence[Tensor]) -> Result:
        """Pack one tensor for each input."""
        return Result(NOTHING, self.case.flatten_inputs([g.detach() for g in values]))

    def vjp(self) -> Result:
        """B(v)."""
        pull = torch.func.vjp(self.function, *self.inputs())[1]
        return self.gradients(pull(self.cotangents))

    def grad(self) -> Result:
        """The gradient of <v, f>."""
        return self.gradients(torch.func.grad(self.scalar, self.every)(*self.inputs()))

    def jacrev(self) -> Result:
        """The Jacobian, contracted with v."""
        return self.gradients(self._rows(torch.func.jacrev(self.function, self.every)(*self.inputs())))

    def jvp(self) -> Result:
        """J u."""
        return self.tangent(torch.func.jvp(self.function, tuple(self.inputs()), self.tangents)[1])

    def jacfwd(self) -> Result:
        """The Jacobian, contracted with u."""
        matrix = torch.func.jacfwd(self.function, self.every, randomness="same")(*self.inputs())
        return self.tangent([_contracted(row, self.tangents) for row in matrix])

    def grad_of_grad(self) -> Result:
        """The gradient of <u, gradient of <v, f>>."""

        def slope(*tensors: Tensor) -> Tensor:
            return inner_product(torch.func.grad(self.scalar, self.every)(*tensors), self.tangents)

        return self.gradients(torch.func.grad(slope, self.every)(*self.inputs()))

    def hessian(self) -> Result:
        """The Hessian of <v, f>, contracted with u."""
        # What torch.func.hessian is, except that it refuses random numbers.
        reverse = torch.func.jacrev(self.scalar, self.every)
        matrix = torch.func.jacfwd(reverse, self.every, randomness="same")(*self.inputs())
        return self.gradients([_contracted(row, self.tangents) for row in matrix])

    def tangent(self, values: Sequence[Tensor]) -> Result:
        """Pack one tangent for each output."""
        return Result(self.case.flatten_outputs([t.detach() for t in values]), [])

    def _rows(self, matrix: Any) -> list[Tensor]:
        """Contract a Jacobian with the cotangents: one gradient for each input."""
        rows = []
        for k, item in enumerate(self.case.inputs):
            shape = item.tensor.shape
            parts = [c.reshape(1, -1) @ blocks[k].reshape(c.numel(), -1) for c, blocks in zip(self.cotangents, matrix)]
            rows.append(torch.stack(parts).sum(0).reshape(shape))
        return rows


def _contracted(blocks: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
    """Contract the last dimensions of each block with its tangent."""
    total: Any = 0.0
    for block, t in zip(blocks, tangents):
        total = total + (block.reshape(-1, t.numel()) @ t.reshape(-1)).reshape(block.shape[: block.dim() - t.dim()])
    return torch.as_tensor(total)


def by_backward(probe: FuncProbe) -> Reference:
    """Return B(v) by eager backward."""
    case, v = probe.case, probe.v
    want = observe(case, v)

    def scatter() -> Result:
        return Result(NOTHING, spread(case, v).gradients)

    return Reference(Result(NOTHING, want.gradients), scatter)


def by_forward_mode(probe: FuncProbe) -> Reference:
    """Return J u by PyTorch's own forward mode."""
    case = probe.case

    def push(flats: dict[int, Tensor]) -> Result:
        inputs = [leaf.detach() for leaf in leaves(case, flats)]
        with case.sandbox(), forward_ad.dual_level():
            duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, probe.tangents)]
            pushed = [forward_ad.unpack_dual(out) for out in probe.function(*duals)]
            return probe.tangent([torch.zeros_like(p.primal) if p.tangent is None else p.tangent for p in pushed])

    def scatter() -> Result:
        seen = Magnitudes()
        with seen.watch():
            here = push({})
        moved = [push(_moved(case, draw)).value for draw in range(SPREAD_DRAWS)]
        most = torch.stack([(m - here.value).abs() for m in moved]).amax(0).nan_to_num(torch.inf)
        # A whole Jacobian of approximations is as far off, in each of its entries, as the tangent itself.
        each = case.allowances.atol * sum(float(u.abs().sum()) for u in probe.u)
        most = most + each + case.allowances.rtol * here.value.abs()
        return Result(most + CANCELLED / 8 * case.epsilon * seen.largest, [])  # large terms that cancel leave that

    try:
        return Reference(push({}), scatter, noun="the tangent")
    except Exception as error:
        return Reference(None, scatter, f"eager forward mode is refused: {refusal(error)}")


def by_double_backward(probe: FuncProbe) -> Reference:
    """Return the gradient of <u, B(v)> by PyTorch's own double backward."""
    case, v, u = probe.case, probe.v, probe.u
    nothing = case.flatten_inputs([None] * len(case.inputs))

    def scatter() -> Result:
        here = double_backward_at(case, v, u, {}) or nothing
        draws = [double_backward_at(case, v, u, _moved(case, draw)) or nothing for draw in range(SPREAD_DRAWS)]
        gaps = [[(a - b).abs() for a, b in zip(draw, here)] for draw in draws]
        return Result(NOTHING, [torch.stack(parts).amax(0).nan_to_num(torch.inf) for parts in zip(*gaps)])

    try:
        second = double_backward(case, v, u)
    except FirstOrderOnlyError:
        words = (
            "declared first-order only (@once_differentiable); torch.func does not enforce it: it silently gives 0 for "
            "the second derivative"
        )
        return Reference(None, scatter, words)
    except Exception as error:
        return Reference(None, scatter, f"differentiating twice in eager mode {refusal(error)}")
    return Reference(Result(NOTHING, nothing if second is None else second[0]), scatter)


def _moved(case: Case, draw: int) -> dict[int, Tensor]:
    generator = case.generator(f"func moved {draw}")
    return {k: one_unit_away(x, generator) for k, x in enumerate(case.base)}
