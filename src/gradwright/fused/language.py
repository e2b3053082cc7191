"""The loss of a language model whose ``forward`` takes labels, as those of Hugging Face do, without its logits.

Such a model multiplies by its last linear layer and computes the loss itself. Here that layer is passed by while the
model's own ``forward`` runs, without labels: where the logits would be comes out what went into the layer, and that
:func:`gradwright.fused.linear_cross_entropy` takes. All else that the forward does stays its own affair.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradwright import torch_compat
from gradwright.errors import RuleError, describe_exception
from gradwright.fused.crossentropy import linear_cross_entropy
from gradwright.fused.head_arguments import IGNORED
from gradwright.fused.layers import Answer, Swap, is_a
from gradwright.fused.standin import TOLERANCES, is_replaced, own_forward

COUNT = "num_items_in_batch"
"""What the trainer of Hugging Face passes where several batches make one step: what the sum of losses is divided by."""
ROUTERS = "output_router_logits"
"""Lets a mixture of experts add a loss of its own."""
UNDERSTOOD = {
    COUNT,
    *("output_attentions", "output_hidden_states", "return_dict"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
}
"""Arguments beyond those that the forward names, with which the loss is known; others may be for the loss."""


NO_LABELS = "no forward takes `labels`, as those of Hugging Face do"
BY_HAND = "in a forward of your own call gw.fused.linear_cross_entropy, or use gw.fused.LinearCrossEntropyLoss"


def language_models(layers: Mapping[str, nn.Module], loss: bool) -> set[str]:
    """Return the names of those layers that take labels and have a last linear layer.

    Where there is none and the loss is to be swapped: of those that take labels. Of them :func:`loss_swap` says more.
    """
    takes = {name for name, layer in layers.items() if _takes_labels(layer)}
    whole = {name for name in takes if _head(layers[name]) is not None}
    return whole or (takes if loss else set())


def _takes_labels(layer: nn.Module) -> bool:
    try:
        return "labels" in inspect.signature(own_forward(layer)).parameters
    except (TypeError, ValueError, AttributeError):  # a scripted module has no forward in Python
        return False


def loss_swap(model: nn.Module) -> Answer:
    """Return how the loss of a language model is computed without its logits, which was tried on a few tokens."""
    answer = _loss_swap(model)
    return answer if isinstance(answer, Swap) else f"{answer}; {BY_HAND}"


def _loss_swap(model: nn.Module) -> Answer:
    head = _head(model)
    if head is None:
        return "its last linear layer is not found, as lm_head or by get_output_embeddings"
    if not is_a(head, nn.Linear):
        return f"its last layer is a {type(head).__name__}, of which no cheaper form is known"
    if _is_watched(head):
        return "a hook reads its logits"
    try:
        said = _tried(model, head)
    except RuleError:
        return "its forward changes the logits, or does not return them"
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, LookupError) as error:
        return f"could not be tried: {describe_exception(error)}"
    return said or Swap(
        partial(_forward, _loss_of(model)),
        "gw.fused.linear_cross_entropy in training with labels, which gives no logits",
    )


def _head(model: Any) -> Any:
    """Return the last layer of a language model, or None."""
    head = getattr(model, "lm_head", None)
    find = getattr(model, "get_output_embeddings", None)
    return find() if head is None and callable(find) else head


def _is_watched(head: Any) -> bool:
    return is_replaced(head) or torch_compat.has_hooks(head)


def _loss_of(model: Any) -> Any:
    """Return the function that the model computes its loss with, or None where it has none of a known name."""
    loss = getattr(model, "loss_function", None)
    return getattr(loss, "__func__", loss)  # what is held must not hold the model


def _forward(loss: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute as the model does, without logits where they are for the loss alone, which is still the one given."""
    own = own_forward(model)
    if not model.training or torch_compat.is_recording() or _loss_of(model) is not loss:
        return own(*args, **kwargs)
    bound = inspect.signature(own).bind(*args, **kwargs)
    if not _is_for_the_loss(model, bound):
        return own(*args, **kwargs)
    return _without_logits(model, bound)


def _is_for_the_loss(model: Any, bound: inspect.BoundArguments) -> bool:
    """Tell whether the loss of a call is known, and the logits are for the loss alone."""
    given = {name: value for name, value in _flat(bound).items() if value is not None}
    names = {parameter.name for parameter in bound.signature.parameters.values() if parameter.kind not in _OPEN}
    return (
        "labels" in given
        and set(given) <= names | UNDERSTOOD
        and given.get("return_dict", True) is True
        and not given.get(ROUTERS, getattr(getattr(model, "config", None), ROUTERS, False))
        and not any(_chooses(given.get(name, 0)) for name in ("logits_to_keep", "num_logits_to_keep"))
        and is_a(_head(model), nn.Linear)  # an adapter may have come over it
        and not _is_watched(_head(model))
    )


_OPEN = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _flat(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a call by name, those that the signature leaves open as well."""
    flat: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        flat |= value if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return flat


def _chooses(keep: Any) -> bool:
    return isinstance(keep, Tensor) or keep != 0


def _without_logits(model: Any, bound: inspect.BoundArguments) -> Any:
    head, given = _head(model), _flat(bound)
    bound.arguments["labels"] = None
    with _passed_by(head) as seen:
        result: Any = own_forward(model)(*bound.args, **bound.kwargs)
    softcap = getattr(getattr(model, "config", None), "final_logit_softcapping", None)
    if not _has_fields(result) or len(seen) != 1 or (softcap is None and result.logits is not seen[0]):
        raise RuleError(
            f"{type(model).__name__}: its forward does something else with the logits than it did when it was patched; "
            "expected them in the result as they come from the last layer; undo the patch."
        )
    (rows,), count = seen, given.get(COUNT)
    following = nn.functional.pad(given["labels"], (0, 1), value=IGNORED)[..., 1:].to(rows.device)
    loss = linear_cross_entropy(
        rows,
        head.weight,
        following,
        linear_bias=head.bias,
        reduction="mean" if count is None else "sum",
        ignore_index=IGNORED,
        softcap=softcap,
        dtype=torch.float32,
    )
    if count is not None:
        loss = loss / (count.to(loss.device) if isinstance(count, Tensor) else count)
    return dataclasses.replace(result, loss=loss, logits=None)


def _has_fields(result: Any) -> bool:
    return dataclasses.is_dataclass(result)


@contextmanager
def _passed_by(head: nn.Module) -> Iterator[list[Tensor]]:
    """Let a layer return what it is given, and note it."""
    seen: list[Tensor] = []

    def keep(input: Tensor) -> Tensor:
        seen.append(input)
        return input

    head.forward = keep
    try:
        yield seen
    finally:
        del head.forward


# -------------------------------------------------------------------- the trial


def _tried(model: nn.Module, head: nn.Linear) -> str | None:
    """Say how the loss of a few tokens differs, or None; the model is as before."""
    tokens = torch.arange(14, device=head.weight.device).reshape(2, 7) % min(head.out_features, 11)
    labels = tokens.clone()
    labels[0, :3] = IGNORED
    signature = inspect.signature(own_forward(model))
    is_open = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for more in ({}, {COUNT: 5}) if is_open else ({},):
        arguments = {"input_ids": tokens, "labels": labels, **more}
        with _as_in_training(model):
            own: Any = own_forward(model)(**arguments)
        if not _has_fields(own):
            return "its result has no fields for loss and logits"
        with _as_in_training(model):
            got = _without_logits(model, signature.bind(**arguments))
        want, got = own.loss.double(), got.loss.double()
        off = float((want - got).abs() / want.abs())
        if not off <= TOLERANCES[head.weight.dtype if head.weight.itemsize < 4 else torch.float32]:
            return f"its loss is off by {off:.0e} from the cross-entropy of the tokens that follow"
    return None


@contextmanager
def _as_in_training(model: nn.Module) -> Iterator[None]:
    """Let a model run as in training, always with the same random numbers, and bring back what that changes."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())), torch.no_grad():
            torch.manual_seed(0)
            yield None
    finally:
        for module, mode in modes.items():
            module.training = mode
        for buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
