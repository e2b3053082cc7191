"""Give the layers of a model that exists already their cheaper forms, and undo it.

No layer is replaced, and no parameter: a layer that is swapped computes with another ``forward``
(:mod:`gradwright.fused.standin`), which was tried on random numbers before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from textwrap import fill

import torch
from torch import nn

from gradwright import torch_compat
from gradwright.authoring.models import Names, grouped, listed, meant, shown
from gradwright.errors import ArgumentError, RuleError, kind_of
from gradwright.fused.language import BY_HAND, NO_LABELS, language_models, loss_swap
from gradwright.fused.layers import Answer, Swap, is_known, swap_of
from gradwright.fused.standin import StandIn, give_back, is_ours, is_replaced, obstacle


@dataclass(frozen=True)
class PatchedLayer:
    """What was done to one layer."""

    name: str
    kind: str
    becomes: str
    """What it computes with now."""


@dataclass(eq=False)
class PatchedModel:
    """What :func:`patch` did; ``str`` of it is a table. In a ``with`` statement it is undone at the end."""

    model: nn.Module
    layers: list[PatchedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Layers that have a cheaper form, and why they have it not."""
    others: dict[str, int] = field(default_factory=dict)
    """How many layers of other kinds there are; nothing cheaper is known for them."""
    loss: str = ""
    """Why no loss is computed without logits, where that was asked for and there is no language model."""
    undone: bool = False

    def undo(self, model: nn.Module | None = None) -> None:
        """Give the layers that were swapped their own forward back; nothing else had changed.

        Arguments:
            model: a copy of the model; None is the model itself. See also :func:`unpatch`.

        Raises:
            RuleError: something else has replaced the forward of a layer since; nothing is undone.
        """
        whole = self.model if model is None else model
        there = dict(whole.named_modules(remove_duplicate=False))
        found = {layer.name: there[layer.name] for layer in self.layers if layer.name in there}
        for name, layer in found.items():
            if is_replaced(layer) and not is_ours(layer):
                raise RuleError(
                    f"undo: the forward of {shown(name)} is another one now; expected the one that patch gave it; "
                    "undo first what was done since."
                )
        for layer in found.values():
            give_back(layer)
        if whole is self.model:
            self.layers.clear()
            self.undone = True

    def __enter__(self) -> PatchedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        if self.undone:
            return "undone: the layers that were swapped have their own forward again"
        total = len(self.layers) + len(self.skipped)
        lines = [f"{len(self.layers)} of {total} layers swapped"]
        for said, names in grouped({layer.name: f"{layer.kind} -> {layer.becomes}" for layer in self.layers}).items():
            lines.append(_entry(listed(names), said))
        if self.skipped or self.others or self.loss:
            lines.append("left as they are")
        lines += [_entry(listed(names), said) for said, names in grouped(self.skipped).items()]
        if self.loss:
            lines.append(_entry("the loss", self.loss))
        if self.others:
            counts = ", ".join(f"{kind} ({count})" for kind, count in self.others.items())
            lines.append(_entry(counts, "nothing cheaper is known"))
        return "\n".join(lines)


def _entry(names: str, said: str) -> str:
    """Return an entry of the report, in lines that fit a narrow terminal; names stay whole."""
    said = f"{names}: {said}"
    return fill(said, 80, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def patch(model: nn.Module, *, only: Names = (), skip: Names = (), loss: bool = False) -> PatchedModel:
    """Let the layers of a model compute in their cheaper forms, in place, where these give the same numbers.

    Swapped are ``nn.RMSNorm`` and norms of Hugging Face like it, ``nn.Softplus``, ``ELU``, ``CELU``, ``SELU``,
    ``LeakyReLU``, ``Hardtanh`` and ``ReLU6``, and in an ``nn.Sequential`` a ``GELU``, ``SiLU`` or ``Mish`` that a
    linear layer follows; elsewhere :class:`GELULinear`, :class:`SiLULinear` and :class:`MishLinear` stand for both.
    Each is tried first, values and gradients on random numbers, and left where these differ by more than rounding.
    Parameters stay the objects that they are, state dicts keep their keys, and hooks run as before; a copy of the
    model and a pickled one are patched too, until :func:`unpatch`.

    Patch before ``torch.compile``. ``nn.DataParallel`` copies layers in a way of its own that does not go with this;
    ``DistributedDataParallel`` does. Where the gradient is read from the output of an activation, writing to that
    output in place makes the backward raise, as it does after a ``ReLU``.

    Arguments:
        model: is changed; :meth:`PatchedModel.undo` takes it back, and so does the end of ``with patch(model):``.
        only: names of layers or of what holds them, ``*`` allowed, and classes of layers; nothing is all.
        skip: the same, for what stays as it is.
        loss: let language models as Hugging Face has them, whose ``forward`` takes ``labels``, compute the loss without
            logits. In training, with labels, ``logits`` in the result are then None; else all is as before. Such a
            model is tried on a few tokens, with its hooks. Other models are left, and the report says why: call
            :func:`linear_cross_entropy` in their forward, or use :class:`LinearCrossEntropyLoss`.

    Returns:
        what was done: print it.

    Raises:
        ArgumentError: ``model`` is no module, or a part of it is compiled already.
        OptionError: ``only`` or ``skip`` names no layer that has a cheaper form.

    Example:
        >>> import torch, gradwright as gw
        >>> from torch.nn import GELU, Linear, RMSNorm, Sequential, Softplus
        >>> model = Sequential(RMSNorm(8), Linear(8, 32), GELU(), Linear(32, 8), Softplus())
        >>> done = gw.fused.patch(model, skip="4")
        >>> print(done)
        2 of 3 layers swapped
          the model itself: Sequential -> 2 and 3 in one, the activation computed again
          0: RMSNorm -> gw.fused.rms_norm
        left as they are
          4: asked for
          Linear (1): nothing cheaper is known
        >>> done.undo()
    """
    _require_module("patch", model)
    report = PatchedModel(model)
    layers = dict(model.named_modules())
    for name, layer in layers.items():
        if torch_compat.is_compiled(layer):
            raise ArgumentError(
                f"patch: {shown(name)} is compiled already; expected a model that is not; patch it first, and compile "
                "it then."
            )
    models = language_models(layers, loss)
    known = {name: layer for name, layer in layers.items() if is_known(layer) or name in models}
    if loss and not models:
        report.loss = f"{NO_LABELS}; {BY_HAND}"
    unwanted = dict.fromkeys(known.keys() - (meant("patch: only", only, known) or known.keys()), "not in `only`")
    unwanted |= dict.fromkeys(meant("patch: skip", skip, known), "asked for")
    dtype = next((tensor.dtype for tensor in model.parameters()), torch.get_default_dtype())
    covered: set[str] = set()
    for name, layer in known.items():  # what holds a layer comes before it
        if name in covered:
            continue
        answer = unwanted.get(name) or _answer(layer, dtype, loss)
        if isinstance(answer, Swap):
            layer.forward = StandIn(answer.compute, layer)
            report.layers.append(PatchedLayer(name, type(layer).__name__, answer.becomes))
            covered |= {f"{name}.{child}".lstrip(".") for child in answer.covers}
        else:
            report.skipped[name] = answer
    leaves = (
        type(layer).__name__
        for name, layer in layers.items()
        if name not in known and name not in covered and next(layer.children(), None) is None
    )
    report.others.update(Counter(leaves))
    return report


def _answer(layer: nn.Module, dtype: torch.dtype, loss: bool) -> Answer:
    if is_known(layer):
        return obstacle(layer) or swap_of(layer, dtype)
    if not loss:
        return "`loss=True` lets it compute its loss without logits, which a training step then does not return"
    return obstacle(layer) or loss_swap(layer)


def unpatch(model: nn.Module) -> int:
    """Give every layer that :func:`patch` swapped its own forward back, in a copy or a pickled model too.

    A forward that something else has replaced since stays.

    Arguments:
        model: one that was patched, once or several times, or what holds it.

    Returns:
        how many layers there were.

    Raises:
        ArgumentError: ``model`` is no module.

    Example:
        >>> import copy, torch, gradwright as gw
        >>> model = torch.nn.Sequential(torch.nn.Softplus(), torch.nn.RMSNorm(8))
        >>> done = gw.fused.patch(model)
        >>> twin = copy.deepcopy(model)
        >>> gw.fused.unpatch(twin), gw.fused.unpatch(twin)
        (2, 0)
    """
    _require_module("unpatch", model)
    return sum(give_back(layer) for layer in model.modules())


def _require_module(name: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"{name}: model is {kind_of(model)}; expected a torch.nn.Module; give the model that holds the layers."
        )
