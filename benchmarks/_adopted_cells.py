"""What each Function of one package does in every transform, as it is and adopted; a process of its own for a package.

    python benchmarks/_adopted_cells.py PACKAGE      # prints one JSON document

A reference is made from the Function's own ``apply`` alone: loops for batching, its own backward one cotangent at a
time for everything of first order, and differences of that gradient for everything of second order.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from _adopted_samples import PACKAGES, Sample
from torch import Tensor

import gradwright as gw
from gradwright.errors import GradwrightError

RIGHT, REFUSES, FOREIGN, NAN, WRONG, UNKNOWN = "right", "refuses", "foreign error", "nan", "wrong", "not judged"
DECLARED = "declared"
"""``refuses`` is an error of gradwright, or of the Function as it is; ``foreign error`` one that came from elsewhere.
``declared`` is a second derivative that follows from the rules of the Function, though not from its values: the rule
is a surrogate, and reads the output."""

Run = Callable[..., Any]


def main() -> int:
    """Print what was found."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [row for sample in PACKAGES[sys.argv[1]].samples() for row in measure(sample)]
    json.dump(rows, sys.stdout)
    return 0


def measure(sample: Sample) -> list[dict[str, Any]]:
    """Return a row for each transform."""
    case = Case(sample)
    rows = []
    for name, (compute, wanted) in case.cells().items():
        row = {"function": sample.name, "transform": name}
        for when, run in (("before", sample.function.apply), ("after", adopted(sample))):
            row[when], row[f"{when} message"] = judge(partial(compute, run), wanted, case.scale, own=when == "before")
        if WRONG in (row["before"], row["after"]) and name in case.declared and not case.exact():
            row["after"], row["before"] = case.declaration(name, row, partial(compute, adopted(sample)))
        rows.append(row)
    return rows


def adopted(sample: Sample) -> Run:
    """Adopt the Function; what cannot be adopted says so at every call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return gw.adopt(sample.function)(*args, **kwargs)

    return run


def judge(compute: Callable[[], Any], wanted: Callable[[], Any], scale: float, *, own: bool) -> tuple[str, str]:
    """Compare a result with what is wanted."""
    try:
        wanted = wanted()
    except Exception:  # the Function is broken as it is
        wanted = None
    try:
        got = compute()
    except GradwrightError as error:
        return REFUSES, str(error)
    except Exception as error:  # whatever a package raises
        message = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        return REFUSES if own else FOREIGN, message
    if wanted is None:
        return UNKNOWN, "no reference"
    if len(got) != len(wanted):
        return WRONG, f"{len(got)} tensors, expected {len(wanted)}"
    for one, other in zip(got, wanted):
        if one.shape != other.shape:
            return WRONG, f"shape {tuple(one.shape)}, expected {tuple(other.shape)}"
        one, other = one.detach().double(), other.detach().double()
        size = max(1e-3, other.nan_to_num(0, 0, 0).abs().max().item()) if other.numel() else 1.0
        if not torch.allclose(one, other, rtol=0, atol=scale * size, equal_nan=True):
            if not torch.isfinite(one).all() and torch.isfinite(other).all():
                return NAN, "not finite where it should be"
            return WRONG, f"off by {(one - other).abs().max().item():.3g} where it is up to {size:.3g}"
    return RIGHT, ""


class Case:
    """One sample: its functions of the tensors that require a gradient, and the references."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.places = [i for i, a in enumerate(sample.args) if isinstance(a, Tensor) and a.requires_grad]
        self.inputs = [sample.args[i].detach().contiguous() for i in self.places]
        single = any(t.dtype == torch.float32 for t in self.inputs)
        self.scale = max(2e-3 if single else 1e-6, sample.tolerance)
        self.step = 1e-2 if single else 1e-4
        outs = _tensors(self.call(sample.function.apply, *self.leaves()))
        assert self.inputs, f"{sample.name}: no input requires a gradient"
        self.shown = [i for i, out in enumerate(outs) if out.requires_grad]
        self.declared = {
            "hessian": lambda: _flat(self.composed()),
            "double backward": lambda: self.along(self.composed()),
        }
        assert self.shown, f"{sample.name}: no output requires a gradient"
        generator = torch.Generator().manual_seed(3)
        self.weights = [torch.randn(outs[i].shape, generator=generator, dtype=torch.float64) for i in self.shown]
        self.tangents = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in self.inputs]

    def leaves(self) -> list[Tensor]:
        return [t.clone().requires_grad_() for t in self.inputs]

    def call(self, run: Run, *tensors: Tensor, named: bool = False) -> Any:
        """Run it with the same random numbers each time."""
        args = [dict(a) if type(a) is dict else a for a in self.sample.args]  # some packages take options out
        for place, tensor in zip(self.places, tensors):
            args[place] = tensor
        torch.manual_seed(0)
        if named:
            return run(**dict(zip(_names(self.sample.function), args)))
        return run(*args)

    def outs(self, run: Run, *tensors: Tensor, named: bool = False) -> tuple[Tensor, ...]:
        """Return the outputs that have a derivative; an in-place Function works on copies."""
        outs = _tensors(self.call(run, *(t.clone() for t in tensors), named=named))
        return tuple(outs[i] for i in self.shown)

    def loss(self, run: Run, *tensors: Tensor) -> Tensor:
        return sum((w.to(o.dtype) * o).sum() for w, o in zip(self.weights, self.outs(run, *tensors)))  # type: ignore[return-value]

    def cubed(self, run: Run, *tensors: Tensor) -> Tensor:
        """Return a loss whose gradient always has a graph, so that a missing second derivative shows."""
        return self.loss(run, *tensors) + sum((t**3).sum() for t in tensors)

    def gradient(self, run: Run, loss: Run, *tensors: Tensor, graph: bool = False) -> list[Tensor]:
        found = torch.autograd.grad(loss(run, *tensors), tensors, create_graph=graph, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors)]

    # ---------------------------------------------------------------- what is asked

    def cells(self) -> dict[str, tuple[Callable[[Run], Any], Callable[[], Any]]]:
        """Return for each transform what to compute, and what should come out."""
        apply = self.sample.function.apply
        every = tuple(range(len(self.inputs)))
        batch = self.batch()
        jacobian = functools.cache(lambda: self.jacobian(apply, self.inputs))
        hessian = functools.cache(lambda: self.hessian(apply))
        vmap, grad, func = partial(torch.func.vmap, randomness="same"), torch.func.grad, torch.func
        xs, ts = tuple(self.inputs), tuple(self.tangents)
        cells = {
            "backward": (self.value_and_gradient, lambda: self.value_and_gradient(apply)),
            "vmap": (lambda run: self.batched(run, batch), lambda: self.looped(apply, batch)),
            "grad": (
                lambda run: vmap(grad(partial(self.loss, run), every))(*batch),
                lambda: _stacked(self.plain_gradient(apply, row) for row in zip(*batch)),
            ),
            "jacrev": (lambda run: _flat(func.jacrev(self.of(run), every)(*xs)), lambda: _flat(jacobian())),
            "jvp": (
                lambda run: func.jvp(self.of(run), xs, ts)[1],
                lambda: [sum(_times(j, t) for j, t in zip(row, ts)) for row in jacobian()],
            ),
            "jacfwd": (
                lambda run: _flat(func.jacfwd(self.of(run), every, randomness="same")(*xs)),
                lambda: _flat(jacobian()),
            ),
            "hessian": (
                lambda run: _flat(func.hessian(partial(self.cubed, run), every)(*xs)),
                lambda: _flat(hessian()),
            ),
            "double backward": (self.twice, lambda: self.along(hessian())),
        }
        if inspect.Parameter.VAR_POSITIONAL not in _kinds(self.sample.function):
            cells["keywords"] = (lambda run: self.outs(run, *xs, named=True), lambda: list(self.outs(apply, *xs)))
        return cells

    def of(self, run: Run) -> Run:
        return partial(self.outs, run)

    def value_and_gradient(self, run: Run) -> list[Tensor]:
        return [*self.outs(run, *self.inputs), *self.plain_gradient(run, self.inputs)]

    def plain_gradient(self, run: Run, at: Sequence[Tensor]) -> list[Tensor]:
        return self.gradient(run, self.loss, *(t.clone().requires_grad_() for t in at))

    def batch(self) -> list[Tensor]:
        return [torch.stack([t, 1.02 * t, 0.97 * t]) for t in self.inputs]

    def batched(self, run: Run, batch: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of a batch and the gradient through it."""
        leaves = [t.clone().requires_grad_() for t in batch]
        outs = torch.func.vmap(partial(self.outs, run), randomness="same")(*leaves)
        loss = sum((w.to(o.dtype) * o).sum() for w, o in zip(self.weights, outs))
        return [*outs, *_zeros(torch.autograd.grad(loss, leaves, allow_unused=True), leaves)]  # type: ignore[arg-type]

    def looped(self, run: Run, batch: Sequence[Tensor]) -> list[Tensor]:
        rows = list(zip(*batch))
        outs = _stacked(self.outs(run, *row) for row in rows)
        return outs + _stacked(self.plain_gradient(run, row) for row in rows)

    def twice(self, run: Run) -> list[Tensor]:
        leaves = self.leaves()
        first = self.gradient(run, self.cubed, *leaves, graph=True)
        total = sum((g * t).sum() for g, t in zip(first, self.tangents))
        return _zeros(torch.autograd.grad(total, leaves, allow_unused=True), leaves)  # type: ignore[arg-type]

    # ---------------------------------------------------------------- references

    def exact(self) -> bool:
        """Tell whether its gradient is the derivative of its values; that of a surrogate is not, on purpose."""
        apply, found = self.sample.function.apply, self.plain_gradient(self.sample.function.apply, self.inputs)
        for place, (t, g) in enumerate(zip(self.inputs, found)):
            for index in range(t.numel()):
                ends = []
                for sign in (1, -1):
                    at = [x.clone() for x in self.inputs]
                    at[place].view(-1)[index] += sign * self.step
                    ends.append(self.loss(apply, *(x.requires_grad_() for x in at)).item())
                if abs((ends[0] - ends[1]) / (2 * self.step) - g.reshape(-1)[index].item()) > 1e-3 * (
                    1 + g.abs().max()
                ):
                    return False
        return True

    def declaration(self, name: str, row: dict[str, Any], compute: Callable[[], Any]) -> tuple[str, str]:
        """Judge a second derivative of a surrogate: its values say nothing, the rules themselves do.

        What ``apply`` gives is right only where adoption finds nothing that is cut and gives the same.
        """
        if row["after"] != WRONG:
            return row["after"], row["before"]
        again, _ = judge(compute, self.declared[name], self.scale, own=False)
        if again == RIGHT:
            return DECLARED, DECLARED if row["before"] == WRONG else row["before"]
        return UNKNOWN if self.keeps_an_intermediate() else WRONG, row["before"]

    def keeps_an_intermediate(self) -> bool:
        """Tell whether it saves what is neither input nor output, so that ``composed`` takes that for a constant."""
        leaves = self.leaves()
        outs = _tensors(self.call(self.sample.function.apply, *leaves))
        node = next(out.grad_fn for out in outs if out.requires_grad)
        own = {t.data_ptr() for t in (*leaves, *outs, *(a for a in self.sample.args if isinstance(a, Tensor)))}
        return any(t is not None and t.data_ptr() not in own for t in node.saved_tensors)  # type: ignore[union-attr]

    def composed(self) -> list[list[Tensor]]:
        """Return the second derivative that follows from the rules of the Function, wherever they are used."""
        rows = []
        for place, x in enumerate(self.inputs):
            entries = []
            for index in range(x.numel()):
                leaves = self.leaves()
                first = self.gradient(self.sample.function.apply, self.cubed, *leaves, graph=True)
                found = torch.autograd.grad(first[place].reshape(-1)[index], leaves, allow_unused=True)
                entries.append(_zeros(found, leaves))
            rows.append([torch.stack(e).reshape(*x.shape, *t.shape) for e, t in zip(zip(*entries), self.inputs)])
        return rows

    def jacobian(self, run: Run, at: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return the Jacobian by the Function's own backward, one cotangent at a time."""
        rows = []
        for place in range(len(self.shown)):
            entries = []
            size = self.outs(run, *at)[place].numel()
            for index in range(size):
                leaves = [t.clone().requires_grad_() for t in at]
                out = self.outs(run, *leaves)[place]
                found = torch.autograd.grad(out.reshape(-1)[index], leaves, allow_unused=True)
                entries.append(_zeros(found, leaves))
            shape = self.outs(run, *at)[place].shape
            columns = zip(*entries) if entries else [()] * len(at)
            rows.append([_stack(e, t).reshape(*shape, *t.shape) for e, t in zip(columns, at)])
        return rows

    def hessian(self, run: Run) -> list[list[Tensor]]:
        """Return the differences of the gradient.

        Raises:
            ValueError: two steps do not agree.
        """
        coarse, fine = self.differences(run, 2 * self.step), self.differences(run, self.step)
        for one, other in zip(_flat(coarse), _flat(fine)):
            size = 1 + other.abs().max().item() if other.numel() else 1
            if not torch.isfinite(other).all() or (one - other).abs().max().item() > 100 * self.scale * size:
                raise ValueError("no second derivative here")
        # The error of the differences goes with the square of the step.
        return [[fi + (fi - co) / 3 for co, fi in zip(cs, fs)] for cs, fs in zip(coarse, fine)]

    def differences(self, run: Run, step: float) -> list[list[Tensor]]:
        rows: list[list[list[Tensor]]] = [[[] for _ in self.inputs] for _ in self.inputs]
        for place, t in enumerate(self.inputs):
            for index in range(t.numel()):
                ends = []
                for sign in (1, -1):
                    at = [x.clone() for x in self.inputs]
                    at[place].view(-1)[index] += sign * step
                    ends.append(self.gradient(run, self.cubed, *(x.requires_grad_() for x in at)))
                for row, (up, down) in enumerate(zip(*ends)):
                    rows[row][place].append((up - down) / (2 * step))
        return [
            [torch.stack(parts, -1).reshape(*x.shape, *t.shape) for parts, t in zip(row, self.inputs)]
            for row, x in zip(rows, self.inputs)
        ]

    def along(self, hessian: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return the tangents times the second derivative."""
        found = []
        for place, t in enumerate(self.inputs):
            column = [h[place].reshape(v.numel(), t.numel()) for h, v in zip(hessian, self.tangents)]
            found.append(sum((v.reshape(-1) @ c).reshape(t.shape) for v, c in zip(self.tangents, column)))
        return found  # type: ignore[return-value]


def _tensors(out: Any) -> list[Tensor]:
    parts = out if isinstance(out, (tuple, list)) else (out,)
    return [part for part in parts if isinstance(part, Tensor)]


def _stacked(rows: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(parts) for parts in zip(*rows)]


def _stack(rows: Sequence[Tensor], like: Tensor) -> Tensor:
    """Stack what has the shape of another tensor, also if there is nothing to stack."""
    return torch.stack(list(rows)) if rows else like.new_zeros(0, *like.shape)


def _flat(nested: Any) -> list[Tensor]:
    return [nested] if isinstance(nested, Tensor) else [t for part in nested for t in _flat(part)]


def _zeros(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, like)]


def _times(jacobian: Tensor, tangent: Tensor) -> Tensor:
    """Return a Jacobian times a tangent."""
    rows = jacobian.reshape(-1, tangent.numel()) @ tangent.reshape(-1)
    return rows.reshape(jacobian.shape[: jacobian.ndim - tangent.ndim])


def _parameters(function: Any) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function.forward).parameters.values())
    two_parts = function.setup_context is not torch.autograd.Function.setup_context
    return parameters if two_parts else parameters[1:]


def _names(function: Any) -> list[str]:
    return [p.name for p in _parameters(function)]


def _kinds(function: Any) -> list[Any]:
    return [p.kind for p in _parameters(function)]


if __name__ == "__main__":
    sys.exit(main())
