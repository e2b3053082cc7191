"""Give the layers of a model that exists already their cheaper forms, and undo it.

No layer is replaced, and no parameter: a layer that is swapped computes with another ``forward``
(:mod:`gradwright.fused.standin`), which was tried on random numbers before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

from gradwright.authoring.models import Names, grouped, listed, meant, shown
from gradwright.errors import RuleError
from gradwright.fused.language import is_language_model, loss_swap
from gradwright.fused.layers import Answer, Swap, is_known, swap_of
from gradwright.fused.standin import StandIn, is_ours, obstacle


@dataclass(frozen=True)
class PatchedLayer:
    """What was done to one layer."""

    name: str
    kind: str
    becomes: str
    """What it computes with now."""


@dataclass(eq=False)
class PatchedModel:
    """What :func:`patch` did; ``str`` of it is a table."""

    model: nn.Module
    layers: list[PatchedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Layers that have a cheaper form, and why they have it not."""
    others: dict[str, int] = field(default_factory=dict)
    """How many layers of other kinds there are; nothing cheaper is known for them."""

    def undo(self, model: nn.Module | None = None) -> None:
        """Give the layers their own forward back; nothing else had changed.

        Arguments:
            model: a copy of the model; None is the model itself.

        Raises:
            RuleError: something else has replaced the forward of a layer since; nothing is undone.
        """
        whole = self.model if model is None else model
        found = {layer.name: whole.get_submodule(layer.name) for layer in self.layers}
        for name, layer in found.items():
            if not is_ours(layer):
                raise RuleError(
                    f"undo: the forward of {shown(name)} is another one now; expected the one that patch gave it; "
                    "undo first what was done since."
                )
        for layer in found.values():
            del layer.forward
        if whole is self.model:
            self.layers.clear()

    def __str__(self) -> str:
        total = len(self.layers) + len(self.skipped)
        lines = [f"{len(self.layers)} of {total} layers swapped"]
        for said, names in grouped({layer.name: f"{layer.kind} -> {layer.becomes}" for layer in self.layers}).items():
            lines.append(f"  {listed(names)}: {said}")
        if self.skipped or self.others:
            lines.append("left as they are")
        lines += [f"  {listed(names)}: {said}" for said, names in grouped(self.skipped).items()]
        if self.others:
            counts = ", ".join(f"{kind} ({count})" for kind, count in self.others.items())
            lines.append(f"  {counts}: nothing cheaper is known")
        return "\n".join(lines)


def patch(model: nn.Module, *, only: Names = (), skip: Names = (), loss: bool = False) -> PatchedModel:
    """Let the layers of a model compute in their cheaper forms, in place, where these give the same numbers.

    Swapped are ``nn.RMSNorm`` and norms of Hugging Face like it, ``nn.Softplus``, ``ELU``, ``CELU``, ``SELU`` and
    ``LeakyReLU``, and in an ``nn.Sequential`` a ``GELU``, ``SiLU`` or ``Mish`` that a linear layer follows. Each is
    tried first, values and gradients on random numbers, and left where these differ by more than rounding. Parameters
    stay the objects that they are, state dicts keep their keys, and hooks run as before; a copy of the model and a
    pickled one are patched too.

    Patch before ``torch.compile``. ``nn.DataParallel`` copies layers in a way of its own that does not go with this;
    ``DistributedDataParallel`` does. Where the gradient is read from the output of an activation, writing to that
    output in place makes the backward raise, as it does after a ``ReLU``.

    Arguments:
        model: is changed; :meth:`PatchedModel.undo` takes it back.
        only: names of layers or of what holds them, ``*`` allowed, and classes of layers; nothing is all.
        skip: the same, for what stays as it is.
        loss: let language models as Hugging Face has them, whose ``forward`` takes ``labels``, compute the loss without
            logits. In training, with labels, ``logits`` in the result are then None; else all is as before. Such a
            model is tried on a few tokens, with its hooks.

    Returns:
        what was done: print it.

    Raises:
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
    report = PatchedModel(model)
    layers = dict(model.named_modules())
    known = {name: layer for name, layer in layers.items() if is_known(layer) or is_language_model(layer)}
    wanted = meant("patch: only", only, known) if only else set(known)
    wanted -= meant("patch: skip", skip, known)
    dtype = next((tensor.dtype for tensor in model.parameters()), torch.get_default_dtype())
    covered: set[str] = set()
    for name, layer in known.items():  # what holds a layer comes before it
        if name in covered:
            continue
        answer = _answer(layer, dtype, loss) if name in wanted else "asked for"
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
