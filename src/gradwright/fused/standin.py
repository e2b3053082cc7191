"""What stands in for the forward of one layer, and the trial that shows that it gives the same numbers.

The layer stays the object that it is: only its ``forward`` becomes an attribute of the instance. So hooks run as
before, ``isinstance`` and the names in a state dict stay, and so do those that sharding and wrapping go by; what holds
the layer need not know. A class of its own for each layer could not be pickled by name, and another layer in its place
would lose hooks and whatever else refers to it.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from gradwright.torch_compat import is_exporting

TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""How much two forms may differ, of the largest number in a tensor: what rounding does to a few dozen numbers."""


class StandIn:
    """Called in place of ``layer.forward``. It goes along when the layer is copied or pickled, and does not keep it."""

    def __init__(self, compute: Callable[..., Any], layer: nn.Module) -> None:
        self.compute = compute
        self.layer = weakref.ref(layer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the layer computes; for an export, which keeps no gradient rules, as the layer itself does."""
        layer = self.layer()
        return own_forward(layer)(*args, **kwargs) if is_exporting() else self.compute(layer, *args, **kwargs)

    def __reduce__(self) -> tuple[type[StandIn], tuple[Any, ...]]:
        return type(self), (self.compute, self.layer())

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(own_forward(self.layer()))

    @property
    def __code__(self) -> CodeType:  # torch.export asks any forward for it, to say where it is from
        layer: Any = self.layer()
        code: CodeType = inspect.unwrap(type(layer).forward).__code__
        return code


def own_forward(layer: Any) -> Callable[..., Any]:
    """Return the forward that the class of a layer defines, bound to it."""
    bound: Callable[..., Any] = type(layer).forward.__get__(layer)
    return bound


def is_replaced(layer: nn.Module) -> bool:
    """Tell whether something stands in for the forward of a layer already, ours or another."""
    return "forward" in vars(layer)


def is_ours(layer: nn.Module) -> bool:
    """Tell whether what stands in for the forward of a layer is from here."""
    return isinstance(vars(layer).get("forward"), StandIn)


def give_back(layer: Any) -> bool:
    """Let a layer compute with its own forward where we replaced it; tell whether we had."""
    ours = is_ours(layer)
    if ours:
        del layer.forward
    return ours


def obstacle(layer: nn.Module) -> str | None:
    """Return why nothing can stand in for the forward of a layer, or None."""
    if is_ours(layer):
        return "is swapped already, which gw.fused.unpatch(model) takes back"
    if is_replaced(layer):
        return "its forward was replaced by something else"
    for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"its {name} is a {type(tensor).__name__}: how it is computed with is not known here"
        if tensor.is_meta:
            return f"its {name} has no numbers yet, on which to try it"
    return None


@dataclass(frozen=True)
class Condition:
    """Under what two computations are compared."""

    input: torch.dtype
    parameters: torch.dtype
    autocast: bool = False

    def __str__(self) -> str:
        kinds = sorted({str(kind).removeprefix("torch.") for kind in (self.input, self.parameters)})
        return " and ".join(kinds) + (" with autocast" if self.autocast else "")


def difference(
    layers: Sequence[nn.Module],
    own: Callable[..., Tensor],
    other: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    conditions: Sequence[Condition],
) -> str | None:
    """Say how two computations with some layers differ, in values or gradients, with random parameters; or None.

    Neither hooks nor generators nor gradients of the user's notice. Where ``own`` fails nothing is compared,
    but it must not in the first condition.
    """
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: torch.randn(p.shape, generator=generator) for name, p in nn.ModuleList(layers).named_parameters()
    }
    for condition in conditions:
        for x in inputs:
            given = {name: p.to(x.device, condition.parameters).requires_grad_() for name, p in parameters.items()}
            x = x.detach().to(condition.input).requires_grad_()
            try:
                want = _results(layers, own, given, x, condition)
            except (RuntimeError, TypeError):
                if condition == conditions[0]:
                    raise
                continue
            got = _results(layers, other, given, x, condition)
            for name in want:
                said = _differ(name, want[name], got[name], condition)
                if said is not None:
                    return said
    return None


class _Computed(nn.Module):
    """Layers with a computation that takes them: calling it, their hooks do not run."""

    def __init__(self, layers: Sequence[nn.Module], compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(*self.layers, x)


def _results(
    layers: Sequence[nn.Module],
    compute: Callable[..., Tensor],
    given: dict[str, Tensor],
    x: Tensor,
    condition: Condition,
) -> dict[str, Tensor]:
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch says of mixed dtypes is not for this
        parameters = {f"layers.{name}": tensor for name, tensor in given.items()}
        with torch.autocast(x.device.type, torch.bfloat16) if condition.autocast else nullcontext():
            out = torch.func.functional_call(_Computed(layers, compute), parameters, (x,))
        g = torch.linspace(-1.0, 2.0, out.numel()).to(out.device, out.dtype).reshape(out.shape)
        found: tuple[Tensor | None, ...] = torch.autograd.grad(out, [x, *given.values()], g, allow_unused=True)
    none = torch.zeros(())
    grads = {f"the gradient of {n}": none if grad is None else grad for n, grad in zip(["the input", *given], found)}
    return {"the output": out.detach(), **grads}


def _differ(name: str, first: Tensor, second: Tensor, condition: Condition) -> str | None:
    """Say how two tensors differ, or None."""
    kinds = [f"{tuple(x.shape)} of {x.dtype}" for x in (first, second)]
    if kinds[0] != kinds[1]:
        return f"{name} is {kinds[0]}, and {kinds[1]} from the cheaper form, in {condition}"
    first, second = first.double(), second.double()
    largest = first.abs().max()
    off = float((first - second).abs().max() / largest) if largest > 0 else float(second.abs().max())
    dtypes = {condition.input, condition.parameters} | ({torch.bfloat16} if condition.autocast else set())
    most = max(TOLERANCES[dtype] for dtype in dtypes)
    return None if off <= most else f"{name} is off by {off:.0e} from the cheaper form, in {condition}"
