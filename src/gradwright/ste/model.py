"""Quantise the layers of a model that exists already, and undo it.

Weights are quantised by ``torch.nn.utils.parametrize``, inputs by a hook before the layer; no layer is replaced. What a
state dict gains is ``LAYER.parametrizations.weight.*``, PyTorch's own convention, and ``LAYER.input_quantizer.*``.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradwright.authoring.models import Names, meant, shown
from gradwright.errors import ArgumentError, GradwrightError, OptionError, RuleError
from gradwright.ste.grids import Codes, Grid
from gradwright.ste.modules import Quantize

Choice: TypeAlias = int | Quantize | Callable[[str, nn.Module], Quantize | None] | None
"""Bits, a quantiser to copy for each layer, or a function from name and layer to a quantiser or None; or None."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)

INPUT = "input_quantizer"
"""The name under which a layer holds the quantiser of its input."""


@dataclass(frozen=True)
class QuantizedLayer:
    """What was done to one layer."""

    name: str
    kind: str
    weight: str | None
    """How its weight is quantised, or None."""
    input: str | None
    """How its input is quantised, or None."""
    shared: tuple[str, ...]
    """Other parameters that are the same tensor as its weight; what reads those is not quantised by this."""
    parameters: tuple[str, ...]
    """The names of its parameters in their order, which parametrising changes."""


@dataclass(eq=False)
class QuantizedModel:
    """What :func:`quantize_model` did; ``str`` of it is a table."""

    model: nn.Module
    layers: list[QuantizedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Layers that could have been quantised, and why they were not."""
    others: dict[str, int] = field(default_factory=dict)
    """How many modules of other kinds have parameters; they stay as they are."""

    def undo(self, model: nn.Module | None = None) -> None:
        """Take off what was added; the parameters are the same objects as before, in the same order.

        Arguments:
            model: a copy of the model; None is the model itself.
        """
        model = self.model if model is None else model
        for layer in self.layers:
            _restore(model.get_submodule(layer.name), layer)
        if model is self.model:
            self.layers.clear()

    def __str__(self) -> str:
        total = len(self.layers) + len(self.skipped)
        lines = [f"{len(self.layers)} of {total} layers quantised"]
        for layer in self.layers:
            lines.append(f"  {shown(layer.name)} ({layer.kind})")
            lines += [f"    {part}: {how}" for part, how in (("weight", layer.weight), ("input", layer.input)) if how]
            if layer.shared:
                lines.append(f"    the same tensor, not quantised where it is read as {', '.join(layer.shared)}")
        if self.skipped or self.others:
            lines.append("left as they are")
        lines += [f"  {shown(name)}: {why}" for name, why in self.skipped.items()]
        lines += [f"  {kind} ({count}): not a linear or convolution layer" for kind, count in self.others.items()]
        return "\n".join(lines)


def quantize_model(
    model: nn.Module,
    *,
    weights: Choice = None,
    activations: Choice = None,
    skip: Names = (),
) -> QuantizedModel:
    """Quantise the weights and the inputs of the linear and convolution layers of a model, in place.

    The optimiser is made after this, so that it has the steps too. The first batch finds the steps of the inputs: run
    one before the model is compiled, or wrapped for several processes, which would find different ones.

    Arguments:
        model: is changed; :meth:`QuantizedModel.undo` takes it back.
        weights: bits, for a learned step for each output channel, as LSQ; or a :class:`Quantize` that is copied for
            each layer; or a function from name and layer to one, or to None for none; or None.
        activations: the same for what goes into a layer; bits stand for one signed learned step. After a ReLU
            ``gw.ste.Quantize(bits, signed=False)`` has twice as many codes.
        skip: names of layers or of what holds them, ``*`` allowed, and classes of layers, that stay as they are.

    Returns:
        what was done: print it.

    Raises:
        OptionError: nothing is asked for, or ``skip`` names no layer.
        ArgumentError: the weight of a layer cannot be quantised; the model is as before.

    Example:
        >>> import torch, gradwright as gw
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> done = gw.ste.quantize_model(model, weights=4, activations=8, skip="2")
        >>> print(done)
        1 of 2 layers quantised
          0 (Linear)
            weight: 4 bits, codes -8 to 7, axis=0, learned step, mask=pre-round
            input: 8 bits, codes -128 to 127, learned step, mask=pre-round, 0 of 1 batches seen for the step (lsq)
        left as they are
          2: asked for
        >>> done.undo()
    """
    if weights is None and activations is None:
        raise OptionError(
            "quantize_model: neither weights nor activations; expected one of them, for example weights=8."
        )
    report = QuantizedModel(model)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LAYERS)}
    left_out = meant("quantize_model: skip", skip, layers)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    others: Counter[str] = Counter()
    try:
        for name, layer in list(model.named_modules()):
            if not isinstance(layer, LAYERS):
                if not _is_ours(name) and any(True for _ in layer.parameters(recurse=False)):
                    others[type(layer).__name__] += 1
                continue
            why = "asked for" if name in left_out else _obstacle(model, name, layer, weights is not None)
            if why is None:
                why = _quantize(report, name, layer, weights, activations, names)
            if why is not None:
                report.skipped[name] = why
    except Exception:
        report.undo()
        raise
    report.others.update(others)
    return report


def export_codes(model: nn.Module) -> dict[str, Codes | Grid]:
    """Return the integer codes of every quantised weight, and the grid of everything else that is quantised.

    Arguments:
        model: one that :func:`quantize_model` has quantised, or that uses :class:`Quantize` in other ways.

    Returns:
        by the name of the tensor, such as ``0.weight``, its :class:`Codes`; by the name of the module, such as
        ``0.input_quantizer``, its :class:`Grid`.

    Raises:
        RuleError: a quantiser has seen no data yet.
    """
    found: dict[str, Codes | Grid] = {}
    for name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            quantizer = module[-1]
            if isinstance(quantizer, Quantize):
                with torch.no_grad():
                    found[name.replace("parametrizations.", "")] = quantizer.codes(_before_the_last(module))
        elif isinstance(module, Quantize) and not _is_parametrization(name):
            if not module.calibrated:
                raise RuleError(f"export_codes: {name} has no step yet; expected data before; run a batch first.")
            found[name] = module.grid
    return found


# -------------------------------------------------------------------- one layer


def _quantize(
    report: QuantizedModel,
    name: str,
    layer: nn.Module,
    weights: Choice,
    activations: Choice,
    names: dict[int, list[str]],
) -> str | None:
    """Quantise one layer and enter it into the report, or return why nothing was done."""
    for_weight = _quantizer(weights, name, layer, axis=1 if isinstance(layer, TRANSPOSED) else 0)
    for_input = _quantizer(activations, name, layer, axis=None)
    if for_weight is None and for_input is None:
        return "no quantiser was chosen for it"
    order = tuple(name for name, _ in layer.named_parameters(recurse=False))
    own = f"{name}.weight".lstrip(".")
    shared = () if for_weight is None else tuple(n for n in names.get(id(layer.weight), ()) if n != own)
    kind = type(layer).__name__
    device = next(layer.parameters()).device
    if for_weight is not None:
        try:
            parametrize.register_parametrization(layer, "weight", for_weight.to(device))
        except GradwrightError as error:
            raise ArgumentError(f"quantize_model: the weight of {shown(name)}: {error}") from error
    if for_input is not None:
        layer.add_module(INPUT, for_input.to(device).train(layer.training))
        # Kept by the quantiser: a copy of the model then has a handle of its own.
        vars(for_input)["hook"] = layer.register_forward_pre_hook(_quantize_input, with_kwargs=True)
    how = [None if q is None else q.extra_repr() for q in (for_weight, for_input)]
    report.layers.append(QuantizedLayer(name, kind, how[0], how[1], shared, order))
    return None


def _quantizer(choice: Choice, name: str, layer: nn.Module, axis: int | None) -> Quantize | None:
    if choice is None:
        return None
    if isinstance(choice, int) and not isinstance(choice, bool):
        return Quantize(choice, axis=axis)
    if isinstance(choice, Quantize):
        return copy.deepcopy(choice)
    chosen = choice(name, layer) if callable(choice) and not isinstance(choice, type) else choice
    if chosen is not None and not isinstance(chosen, Quantize):
        raise OptionError(f"quantize_model: for {shown(name)} got {chosen!r}; expected a gw.ste.Quantize or None.")
    return chosen


def _quantize_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Quantise what goes into a layer; a hook."""
    quantizer = layer.get_submodule(INPUT)
    if args:
        return (quantizer(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "input": quantizer(kwargs["input"])}


def _obstacle(model: nn.Module, name: str, layer: nn.Module, weight: bool) -> str | None:
    """Return why a layer cannot be quantised, or None."""
    parent = model.get_submodule(name.rpartition(".")[0]) if name else None
    if isinstance(parent, nn.MultiheadAttention):
        return "attention computes with its weights itself and never calls it"
    if INPUT in dict(layer.named_children()):
        return "its input is quantised already"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params():
        return "it does not know its shape yet: run a batch first"
    if weight and parametrize.is_parametrized(layer, "weight"):
        return "its weight is parametrised already"
    if weight and "weight" not in dict(layer.named_parameters(recurse=False)):
        return "its weight is no parameter"
    return None


def _restore(layer: nn.Module, done: QuantizedLayer) -> None:
    """Undo what was done to one layer."""
    if done.input is not None:
        vars(layer.get_submodule(INPUT))["hook"].remove()
        delattr(layer, INPUT)
    if done.weight is not None:
        # Copies of a parametrised module share the class that PyTorch made for it, and removing takes the property
        # from that class: from the other copies too (torch 2.13).
        shared = type(layer)
        layer.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
        for name in done.parameters:  # the weight has come last, and an optimiser counts them
            parameter = getattr(layer, name)
            delattr(layer, name)
            layer.register_parameter(name, parameter)


# -------------------------------------------------------------------- names


def _is_parametrization(name: str) -> bool:
    return "parametrizations" in name.split(".")


def _is_ours(name: str) -> bool:
    return _is_parametrization(name) or name.rpartition(".")[2] == INPUT


def _before_the_last(chain: parametrize.ParametrizationList) -> Tensor:
    """Return what the last parametrisation of a tensor is given."""
    many = [f"original{number}" for number in range(chain.ntensors)]
    values = (chain.original,) if chain.is_tensor else tuple(getattr(chain, name) for name in many)
    for step in list(chain)[:-1]:
        values = (step(*values),)
    (value,) = values
    assert isinstance(value, Tensor)
    return value
