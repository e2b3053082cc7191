"""Quantisers as modules: with a step of their own, that is found from the first data and may be learned.

A learned step is kept so: the parameter ``step`` counts in units of the step that was found, ``unit``, from 1 on;

    scale = unit * softplus(step)

with a softplus so sharp (1/20) that it is the identity from the start upwards; below, the scale nears zero and never
reaches it. The gradient of ``step`` is that of ``scale`` divided by ``unit``, not multiplied by it, so that both kinds
of optimisers do well: gradient descent moves the scale exactly as if it were the parameter, with the gradient that the
function declares, and Adam, which moves every parameter by about its learning rate, changes it by that *part* of
itself. (On the scale itself, which is 0.01 for 8 bits, a rate of 0.01 would be a change of 100 %.)
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwright import torch_compat
from gradwright.errors import ArgumentError, OptionError, RuleError, unknown_choice
from gradwright.ste.grids import Codes, Grid
from gradwright.ste.learned import lsq_gradient_scale
from gradwright.ste.masks import Edges, Mask, working_dtype
from gradwright.ste.parameters import arranged, reduced, shared_dims
from gradwright.ste.rounding import round as round_ste
from gradwright.ste.shaping import scale_gradient
from gradwright.ste.uniform import codes as codes_of
from gradwright.ste.uniform import fake_quantize

Init: TypeAlias = Literal["lsq", "absmax"]
INITS: tuple[Init, ...] = ("lsq", "absmax")

UNKNOWN_STEP = (
    "Quantize: its step is not known yet, and finding it cannot be traced; expected data before; run a batch first, or "
    "leave fullgraph=True away."
)
SHARPNESS = 20.0
LINEAR_FROM = 19.9
"""In units of the softplus: where it is replaced by the identity, from which it differs by 1e-10 there."""


class Quantize(nn.Module):
    """Quantise a tensor to evenly spaced codes and back, with a step that is found from the data and may be learned.

    The first ``batches`` calls find the step, in training and in evaluation alike; after that only an optimiser changes
    it. A layer's weights are quantised by
    ``torch.nn.utils.parametrize.register_parametrization(layer, "weight", gw.ste.Quantize(4, axis=0))``, and a whole
    model by :func:`gradwright.ste.quantize_model`.

    Arguments:
        bits, signed, narrow: the codes; see :func:`gradwright.ste.codes`.
        axis, group_size: one step for each slice along an axis, or for each group; see :func:`fake_quantize`.
        scale: the step at the start; None finds it from the first calls.
        learned: make the step a parameter, ``step``, relative to the one that was found. It can never become zero or
            negative (:mod:`the module <.modules>` says how).
        init: how the step is found: ``lsq`` is ``2 mean |x| / sqrt(high)``, ``absmax`` covers the largest value. With
            several batches, their mean or the largest.
        batches: how many calls find the step.
        zero_point: use a zero point, for values that lie to one side of zero; found with ``init="absmax"``, which
            then covers the lowest and the highest value. Learned like the step, and rounded to a whole code.
        mask, edges: where the gradient passes; None is ``pre-round``, that of LSQ, or what another ``function`` does.
        gradient_scale: a factor for the gradient of the step; None is ``1 / sqrt(N high)`` for a step that ``N``
            elements share, as in LSQ.
        function: what quantises, called as :func:`fake_quantize` is; of the options it gets those that it has.
        options: more options for the function.

    Raises:
        OptionError: an option has no value that is known, or the function has no such option.
        ArgumentError: the first data are not finite.

    Example:
        >>> import torch, gradwright as gw
        >>> quantize = gw.ste.Quantize(4, init="absmax")
        >>> quantize(torch.tensor([0.1, -0.6, 1.75])).tolist()
        [0.0, -0.5, 1.75]
        >>> quantize.scale.item(), quantize.codes(torch.tensor([0.1, -0.6, 9.0])).values
        (0.25, tensor([ 0, -2,  7], dtype=torch.int8))
    """

    step: Tensor
    unit: Tensor
    zero_point: Tensor | None
    seen: Tensor

    def __init__(
        self,
        bits: int = 8,
        *,
        signed: bool = True,
        narrow: bool = False,
        axis: int | None = None,
        group_size: int | None = None,
        scale: Tensor | float | None = None,
        learned: bool = True,
        init: Init = "lsq",
        batches: int = 1,
        zero_point: bool = False,
        mask: Mask | None = None,
        edges: Edges | None = None,
        gradient_scale: float | None = None,
        function: Callable[..., Tensor] = fake_quantize,
        **options: Any,
    ) -> None:
        super().__init__()
        self.bits, self.signed, self.axis, self.group_size = bits, signed, axis, group_size
        self.low, self.high = codes_of(bits, signed=signed, narrow=narrow)
        if init not in INITS:
            raise unknown_choice("Quantize: init", init, INITS)
        if zero_point and init != "absmax":
            raise OptionError(f"Quantize: zero_point with init={init!r}; expected init='absmax', which finds one.")
        if batches < 1:
            raise OptionError(f"Quantize: batches is {batches}; expected at least 1.")
        if mask is None and function is fake_quantize:
            mask = "pre-round"
        self.learned, self.init, self.batches = learned, init, batches
        self.gradient_scale, self.function = gradient_scale, function
        self.options = self._understood(narrow, mask=mask, edges=edges, axis=axis, group_size=group_size, **options)
        start = torch.ones(()) if scale is None else torch.as_tensor(scale, dtype=torch.get_default_dtype()).detach()
        if scale is not None and not bool((start > 0).all() & start.isfinite().all()):
            raise OptionError(f"Quantize: scale is {scale}; expected positive numbers.")
        self._hold("step", torch.ones_like(start) if learned else start.clone())
        self._hold("zero_point", torch.zeros_like(start) if zero_point else None)
        if learned:
            self.register_buffer("unit", start.clone())
        self.register_buffer("seen", torch.tensor(0 if scale is None else batches))
        self._seen = (
            0 if scale is None else batches
        )  # the same as a number: a branch on a tensor would wait for the device
        self._guessed: Tensor | None = None  # where the data so far were all zeros, while steps are being found
        self.register_load_state_dict_pre_hook(_fit_shapes)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_count_again)  # type: ignore[no-untyped-call]

    def _understood(self, narrow: bool, **options: Any) -> dict[str, Any]:
        """Return the options that the function takes, those that say what the codes are among them.

        Raises:
            OptionError: one that was given is not among them.
        """
        known = inspect.signature(self.function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        codes = {"low": self.low, "high": self.high, "bits": self.bits, "signed": self.signed, "narrow": narrow}
        given = {name: value for name, value in options.items() if value is not None}
        if not {"low", "high"} <= set(known):  # then these are not known to it in another way
            given.update({"signed": False} if not self.signed else {}, **({"narrow": True} if narrow else {}))
        for name in given:
            if name not in known and not takes_all:
                raise OptionError(f"Quantize: {name}={given[name]!r}; the function has no such option; leave it out.")
        self._scales_gradient = "gradient_scale" in known
        return {**{name: value for name, value in codes.items() if name in known}, **given}

    def _hold(self, name: str, value: Tensor | None) -> None:
        if self.learned and value is not None:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    # ---------------------------------------------------------------- what it computes

    @property
    def calibrated(self) -> bool:
        """Whether the step has been found."""
        return self._seen >= self.batches

    @property
    def scale(self) -> Tensor:
        """The step that is used: positive, whatever an optimiser has made of the parameter; at least float32."""
        step = self.step.to(working_dtype(self.step.dtype))
        if not self.learned:
            return step
        unit = self.unit.to(step.dtype)
        soft: Tensor = functional.softplus(
            scale_gradient(step, unit.square().reciprocal()), beta=SHARPNESS, threshold=LINEAR_FROM
        )
        return unit * soft + torch.finfo(step.dtype).tiny  # softplus underflows for a step far below zero

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` quantised, of the same shape and dtype."""
        if not self.calibrated:
            if torch.compiler.is_compiling():
                torch_compat.call_untraced(self._calibrate, (x,), UNKNOWN_STEP)
            else:
                self._calibrate(x)
        options, scale = dict(self.options), self.scale
        dtype = torch.promote_types(scale.dtype, x.dtype)
        if self._scales_gradient:
            usual = lsq_gradient_scale(x, self.step, self.high)
            options["gradient_scale"] = usual if self.gradient_scale is None else self.gradient_scale
        if self.zero_point is not None:
            options["zero_point"] = round_ste(self.zero_point.to(dtype))
        return self.function(x, scale.to(dtype), **options)

    @property
    def __surrogate__(self) -> Callable[..., Tensor] | None:
        """What ``gw.check`` compares the gradient with: the module with the surrogate of its function, if that has one.

        Takes the input and, by name, the parameters.

        Raises:
            RuleError: the step is not known yet.
        """
        surrogate = getattr(getattr(self.function, "__custom_gradient__", None), "surrogate", None)
        if surrogate is None:
            return None
        if not self.calibrated:  # both would find a step of their own, each from the first points of the check
            raise RuleError("Quantize: its step is not known yet; expected data before a check; run a batch first.")
        twin = copy.deepcopy(self)
        twin.function = surrogate
        return lambda x, **parameters: torch.func.functional_call(twin, parameters, (x,))

    # ---------------------------------------------------------------- the first data

    def restart(self) -> None:
        """Find the step anew from the next calls."""
        self._seen = 0
        self._guessed = None
        self.seen.zero_()

    def _calibrate(self, x: Tensor) -> None:
        """Take one more batch into account.

        Raises:
            RuleError: in a transform, whose tensors must not be kept.
            ArgumentError: the values are not finite.
        """
        if torch_compat.transforms_active():
            raise RuleError("Quantize: its step is not known yet; expected data before a transform; run a batch first.")
        if x.is_meta:
            raise RuleError(
                "Quantize: its step is found from data, which a meta tensor has not; load the weights first."
            )
        if not x.numel():
            return
        with torch.inference_mode(False), torch.no_grad():
            values = x.detach().clone().to(working_dtype(x.dtype))  # the clone of an inference tensor is a usual one
            if not bool(values.isfinite().all()):
                raise ArgumentError("Quantize: a value of the first data is not finite; expected finite ones.")
            scale, zero = self._found(values)
            limits = torch.finfo(self.step.dtype)
            scale = scale.clamp(limits.tiny, limits.max)  # so that half precision makes it neither zero nor infinite
            if self.learned:
                _set(self.unit, scale)
                _set(self.step, torch.ones_like(scale))
            else:
                _set(self.step, scale)
            if self.zero_point is not None:
                _set(self.zero_point, zero)
            self._seen += 1
            if self.calibrated:
                self._guessed = None
            self.seen.fill_(self._seen)

    def _found(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return step and zero point for the data so far, these included."""
        grouped, _ = arranged("Quantize", x, (), self.axis, self.group_size)  # first: it refuses what does not fit
        shared, x = shared_dims("Quantize", x, self.axis, self.group_size), grouped
        earlier = torch.zeros((), device=x.device)
        if self._seen:
            earlier = self.scale.to(x.device)
            if self._guessed is not None:
                earlier = torch.where(self._guessed.to(x.device), 0.0, earlier)
        zero = torch.zeros((), device=x.device)
        if self.init == "lsq":
            new = 2 * reduced(torch.mean, x.abs(), shared) / max(self.high, 1) ** 0.5
            scale = earlier + (new - earlier) / (self._seen + 1)
        elif self.zero_point is None:
            # A side without codes is clipped anyway, and needs no step.
            ends = torch.where(x < 0, self.low or -math.inf, self.high or math.inf)
            new = reduced(torch.amax, (x / ends).abs(), shared)
            scale = torch.maximum(new, earlier)
        else:
            before = self.zero_point.to(x.device)
            lowest = torch.minimum(reduced(torch.amin, x, shared).clamp(max=0.0), (self.low - before) * earlier)
            highest = torch.maximum(reduced(torch.amax, x, shared).clamp(min=0.0), (self.high - before) * earlier)
            scale = (highest - lowest) / (self.high - self.low)
            zero = self.low - lowest / torch.where(scale > 0, scale, 1.0)
        # All zeros tell nothing of a step; that of their neighbours is the best guess, which later data do not meet.
        self._guessed = scale <= 0
        largest = scale.amax()
        return torch.where(scale > 0, scale, torch.where(largest > 0, largest, 1.0)), zero.expand_as(scale)

    # ---------------------------------------------------------------- integers

    @property
    def grid(self) -> Grid:
        """The step, the zero point and the range of the codes, as they are now."""
        if not self.calibrated:
            raise RuleError("Quantize: its step is not known yet; expected data before an export; run a batch first.")
        with torch.no_grad():
            zero = None if self.zero_point is None else self.zero_point.detach().round().to(torch.int32)
            return Grid(self.scale.detach().clone(), zero, self.low, self.high, self.axis, self.group_size)

    def codes(self, x: Tensor) -> Codes:
        """Return the integer codes of ``x`` with their grid; ``codes(x).dequantize()`` is what the module returns.

        Raises:
            RuleError: the step is not known yet.
            ArgumentError: the function is one whose values are not evenly spaced.
        """
        grid = self.grid
        with torch.no_grad():
            return grid.encode(self(x.detach().to(working_dtype(x.dtype))))

    def int_repr(self, x: Tensor) -> Tensor:
        """Return the integer codes of ``x`` alone, as ``int_repr`` of PyTorch's quantised tensors does."""
        return self.codes(x).values

    def extra_repr(self) -> str:
        """Say what is quantised and how, in one line."""
        parts = [f"{self.bits} bits, codes {self.low} to {self.high}"]
        if self.axis is not None:
            parts.append(f"axis={self.axis}" + (f", group_size={self.group_size}" if self.group_size else ""))
        parts.append("learned step" if self.learned else "constant step")
        if self.zero_point is not None:
            parts.append("zero point")
        parts += [f"{name}={self.options[name]}" for name in ("mask", "edges") if name in self.options]
        if self.function is not fake_quantize:
            parts.append(f"function={getattr(self.function, '__name__', type(self.function).__name__)}")
        if not self.calibrated:
            parts.append(f"{self._seen} of {self.batches} batches seen for the step ({self.init})")
        return ", ".join(parts)


def _set(held: Tensor, value: Tensor) -> None:
    """Give a parameter or buffer a value, and its shape where it had none yet; the tensor stays the same object."""
    value = value.to(held.device, held.dtype)
    if held.shape == value.shape:
        held.copy_(value)
    else:
        held.data = value.clone()


def _fit_shapes(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Take the shapes of a state dict: a quantiser that has seen nothing does not know how many steps there are."""
    for name in ("step", "unit", "zero_point"):
        held, new = getattr(module, name, None), state.get(prefix + name)
        if isinstance(held, Tensor) and isinstance(new, Tensor) and held.dim() == 0 and new.dim() > 0:
            held.data = held.detach().expand(new.shape).clone()


def _count_again(module: nn.Module, _: Any) -> None:
    assert isinstance(module, Quantize)
    module._seen, module._guessed = int(module.seen), None
