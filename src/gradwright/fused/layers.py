"""The layers of PyTorch and Hugging Face of which a cheaper form is known, and how each is recognised.

A class of PyTorch counts when its ``forward`` is PyTorch's own. A norm of another library is known by what it holds.
All are tried: two norms that look alike may differ in whether 1 is added to the weight, and only numbers tell.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gradwright import torch_compat
from gradwright.errors import GradwrightError, describe_exception
from gradwright.fused.activated_linear import gelu_linear, mish_linear, silu_linear
from gradwright.fused.kinked import hardtanh, leaky_relu
from gradwright.fused.norm_rows import Cast
from gradwright.fused.norms import rms_norm
from gradwright.fused.outputs import celu, elu, selu, softplus
from gradwright.fused.standin import TOLERANCES, Condition, difference, is_replaced, own_forward

SCALES = (1e-3, 1.0, 30.0)
"""Of trial inputs: with the smallest, what is added below a root shows."""

MIXED = (Condition(torch.bfloat16, torch.float32), Condition(torch.float32, torch.bfloat16))


@dataclass(frozen=True)
class Swap:
    """How the forward of a layer can be computed."""

    compute: Callable[..., Any]
    """Takes the layer and what its forward takes."""
    becomes: str
    covers: tuple[str, ...] = ()
    """The names of children that are computed along with it."""


Answer: TypeAlias = Swap | str
"""A swap, or why there is none."""


def is_known(layer: nn.Module) -> bool:
    """Tell whether there may be a cheaper form of a layer."""
    if is_a(layer, nn.Sequential):
        steps = list(layer.children())
        return any(_pair(*both) is not None for both in pairwise(steps))
    return isinstance(layer, _OTHERS) or _looks_like_a_norm(layer)


def swap_of(layer: nn.Module, dtype: torch.dtype) -> Answer:
    """Return how a layer that is known is computed for less, which was tried, or why it is not.

    ``dtype`` is that of the model, for layers without parameters.
    """
    if isinstance(layer, nn.Sequential):
        return _sequential(layer)
    kind = next((kind for kind in _OTHERS if isinstance(layer, kind)), None)
    if kind is not None and not is_a(layer, kind):
        ours = type(layer).__module__.startswith(__package__ or "")
        return "is one of gw.fused already" if ours else "its class has a forward of its own"
    if kind in _OUTPUTS:
        return _from_output(layer, dtype, *_OUTPUTS[kind])
    if kind is nn.RMSNorm:
        return _tried(
            layer, Swap(_rms_norm, "gw.fused.rms_norm"), _rows(layer, layer.normalized_shape), [*_plain(layer), *MIXED]
        )
    if kind is not None:
        both = f"gw.fused.{kind.__name__}Linear"
        return f"has a cheaper form only with the linear layer after it: in a Sequential, or write {both} for both"
    return _foreign_norm(layer)


def is_a(layer: Any, *kinds: type[nn.Module]) -> bool:
    """Tell whether a layer computes as one of PyTorch's classes does."""
    return any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in kinds)


# -------------------------------------------------------------------- norms


def _rms_norm(layer: Any, x: Tensor) -> Tensor:
    return rms_norm(x, layer.normalized_shape, layer.weight, layer.eps)


def _looks_like_a_norm(layer: nn.Module) -> bool:
    name, tensors = type(layer).__name__, [*layer.named_parameters(), *layer.named_buffers()]
    known = name.endswith("RMSNorm") or (name.endswith("LayerNorm") and hasattr(layer, "variance_epsilon"))
    return known and [(name, tensor.dim()) for name, tensor in tensors] == [("weight", 1)]


_EPSILONS = ("variance_epsilon", "eps", "epsilon")
_FORMS: tuple[tuple[float, Cast], ...] = ((0.0, "normalized"), (0.0, "output"), (1.0, "output"), (1.0, "normalized"))
"""What is added to the weight, and what is rounded in half types: that of Llama, T5 and many, then that of Gemma."""


def _foreign(layer: Any, x: Tensor, *, epsilon: str, offset: float, cast: Cast, mixes: bool) -> Tensor:
    """Compute a norm of another library, which need not mix dtypes as we do."""
    if not mixes and x.dtype != layer.weight.dtype:
        out: Tensor = own_forward(layer)(x)
        return out
    return rms_norm(x, layer.weight.shape, layer.weight, getattr(layer, epsilon), offset=offset, cast=cast)


def _foreign_norm(layer: nn.Module) -> Answer:
    epsilon = next((name for name in _EPSILONS if isinstance(getattr(layer, name, None), float)), None)
    if epsilon is None:
        return "what it adds below the root is not known"
    if len(inspect.signature(own_forward(layer)).parameters) != 1:
        return "its forward takes more than the input"
    answers = []
    for mixes in (True, False):
        for offset, cast in _FORMS:
            said = "gw.fused.rms_norm" + (", with 1 + weight" if offset else "")
            swap = Swap(partial(_foreign, epsilon=epsilon, offset=offset, cast=cast, mixes=mixes), said)
            answer = _tried(layer, swap, _rows(layer, layer.weight.shape), [*_plain(layer), *MIXED])
            if isinstance(answer, Swap):
                return answer
            answers.append(answer)
    return answers[-len(_FORMS)]


# -------------------------------------------------------------------- activations


def _softplus(layer: Any, x: Tensor) -> Tensor:
    return softplus(x, layer.beta, layer.threshold)


def _elu(layer: Any, x: Tensor) -> Tensor:
    return elu(x, layer.alpha)


def _celu(layer: Any, x: Tensor) -> Tensor:
    return celu(x, layer.alpha)


def _selu(layer: Any, x: Tensor) -> Tensor:
    return selu(x)


def _leaky_relu(layer: Any, x: Tensor) -> Tensor:
    return leaky_relu(x, layer.negative_slope)


def _hardtanh(layer: Any, x: Tensor) -> Tensor:
    return hardtanh(x, layer.min_val, layer.max_val)


_OUTPUTS: dict[type[nn.Module], tuple[Callable[..., Tensor], str]] = {
    nn.Softplus: (_softplus, "softplus"),
    nn.ELU: (_elu, "elu"),
    nn.CELU: (_celu, "celu"),
    nn.SELU: (_selu, "selu"),
    nn.LeakyReLU: (_leaky_relu, "leaky_relu"),
    nn.Hardtanh: (_hardtanh, "hardtanh"),
}


def _from_output(layer: Any, dtype: torch.dtype, compute: Callable[..., Tensor], name: str) -> Answer:
    if getattr(layer, "inplace", False):
        return "works in place, and keeps nothing but its output already"
    numbers = [torch.linspace(-6.0, 6.0, 97), torch.linspace(-60.0, 60.0, 96)]
    swap = Swap(compute, f"gw.fused.{name}, from the output")
    answer = _tried(layer, swap, numbers, [Condition(dtype, dtype), *(Condition(each, each) for each in TOLERANCES)])
    if isinstance(answer, Swap) and _keeps_input(layer, compute, numbers[0].to(dtype)):
        return f"with these options, in {str(dtype).removeprefix('torch.')}, its output does not tell its gradient"
    return answer


def _keeps_input(layer: Any, compute: Callable[..., Tensor], x: Tensor) -> bool:
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compute(layer, x.requires_grad_())
    return x.data_ptr() in kept


# -------------------------------------------------------------------- activation and linear layer


def _gelu_linear(gelu: Any, linear: Any, x: Tensor) -> Any:
    return gelu_linear(x, linear.weight, linear.bias, gelu.approximate)


def _silu_linear(silu: Any, linear: Any, x: Tensor) -> Any:
    return silu_linear(x, linear.weight, linear.bias)


def _mish_linear(mish: Any, linear: Any, x: Tensor) -> Any:
    return mish_linear(x, linear.weight, linear.bias)


_ACTIVATED: dict[type[nn.Module], Callable[..., Any]] = {
    nn.GELU: _gelu_linear,
    nn.SiLU: _silu_linear,
    nn.Mish: _mish_linear,
}


def _chain(layer: Any, input: Any) -> Any:
    """Compute a Sequential, its activations together with the linear layers that follow.

    What the pairs are is found at each call: a hook that came since sees what it would see.
    """
    steps = list(layer)
    while steps:
        together = _together(steps)
        if together is None:
            input = steps.pop(0)(input)
        else:
            input = together(*steps[:2], input)
            del steps[:2]
    return input


def _together(steps: list[Any]) -> Callable[..., Any] | None:
    """Return how the first two layers are computed together, or None."""
    compute = _pair(*steps[:2]) if len(steps) > 1 else None
    return None if compute is None or _apart(*steps[:2]) else compute


def _pair(activation: Any, linear: Any) -> Callable[..., Any] | None:
    """Return how an activation and a linear layer are computed together, or None where it is not known."""
    kind = next((kind for kind in _ACTIVATED if is_a(activation, kind)), None)
    return _ACTIVATED[kind] if kind is not None and is_a(linear, nn.Linear) else None


def _apart(activation: Any, linear: Any) -> str | None:
    """Return why two layers stay two, or None."""
    if getattr(activation, "inplace", False):
        return "the activation works in place"
    if is_replaced(activation) or is_replaced(linear):
        return "the forward of one was replaced by something else"
    if torch_compat.has_hooks(activation) or torch_compat.has_hooks(linear):
        return "a hook reads what is between them"
    return None


def _sequential(layer: Any) -> Answer:
    steps = list(layer.named_children())
    pairs, reasons = [], []
    for (name, step), (following, linear) in pairwise(steps):
        together = _pair(step, linear)
        if together is None:
            continue
        small = skip_init(
            nn.Linear, 6, 4, bias=linear.bias is not None, device=linear.weight.device, dtype=linear.weight.dtype
        )
        said = _apart(step, linear) or _compared(
            [step, small], _one_by_one, together, _rows(linear, (6,)), _plain(linear)
        )
        if said is None:
            pairs.append((name, following))
        else:
            reasons.append(f"{name} and {following} stay apart: {said}")
    if not pairs:
        return "; ".join(reasons)
    said = ", ".join(" and ".join(pair) for pair in pairs)
    return Swap(_chain, f"{said} in one, the activation computed again", tuple(name for pair in pairs for name in pair))


def _one_by_one(activation: Any, linear: Any, x: Tensor) -> Any:
    return own_forward(linear)(own_forward(activation)(x))


# -------------------------------------------------------------------- the trial


def _tried(layer: nn.Module, swap: Swap, inputs: list[Tensor], conditions: list[Condition]) -> Answer:
    """Return the swap when it gives what the layer gives, in training and else, or what is different."""
    for training in (layer.training, not layer.training):
        with _in_mode(layer, training):
            said = _compared([layer], lambda layer, x: own_forward(layer)(x), swap.compute, inputs, conditions)
        if said is not None:
            return said if training == layer.training else f"{said}, {'in' if training else 'out of'} training"
    return swap


@contextmanager
def _in_mode(layer: nn.Module, training: bool) -> Iterator[None]:
    """Let a layer compute as in training or not; the modes that it had and the random numbers to come are kept."""
    modes = {module: module.training for module in layer.modules()}
    layer.train(training)
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield None
    finally:
        for module, mode in modes.items():
            module.training = mode


def _compared(
    layers: list[nn.Module],
    own: Callable[..., Any],
    other: Callable[..., Any],
    inputs: list[Tensor],
    conditions: list[Condition],
) -> str | None:
    try:
        return difference(layers, own, other, inputs, conditions)
    except (GradwrightError, RuntimeError, TypeError) as error:
        return f"could not be tried: {describe_exception(error)}"


def _plain(layer: nn.Module) -> list[Condition]:
    """Return what a layer with parameters meets: its dtype, training in bfloat16 and with autocast."""
    own = next((parameter.dtype for parameter in layer.parameters()), torch.get_default_dtype())
    half, single = torch.bfloat16, torch.float32
    return [Condition(own, own), Condition(half, half), Condition(single, single, True)]


def _rows(layer: nn.Module, shape: Any) -> list[Tensor]:
    """Return rows of random numbers as a layer takes them, of several sizes, with a mean that is not 0."""
    like = next(layer.parameters(), torch.empty(()))
    rows = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1)) + 0.5
    return [(scale * rows).to(like.device, like.dtype) for scale in SCALES]


_OTHERS: tuple[type[nn.Module], ...] = (nn.RMSNorm, *_OUTPUTS, *_ACTIVATED)
