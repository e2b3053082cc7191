"""Log-probabilities of chosen classes and entropies, from logits: what losses of policies and preferences are made of.

PyTorch forms the logarithms of all probabilities to pick one of them, keeps those, and fills two more tensors of that
size with zeros and the gradient. Here the logits alone are kept, and the gradient is the only tensor of their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError, OptionError
from gradwright.fused.logit_rows import picked, picked_and_entropy
from gradwright.stable.arguments import not_a_tensor, require_floating, require_number

INF = math.inf
BARS = relative(1e-12, 1e-6, *HALF)


class TopK(NamedTuple):
    """The log-probabilities of the likeliest classes of each row and which they are, as ``torch.topk`` returns them."""

    values: Tensor
    indices: Tensor


def _rows(dtype: torch.dtype, *values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _rows(dtype, [0.5, -1.25, 2.0, 0.125], [3.0, 3.0, -0.75, 1.5], [-2.0, 0.25, 0.5, 4.0])
    one, three = torch.tensor([2, 0, 1]), torch.tensor([[0, 1, 1], [3, 2, 0], [2, 2, 2]])
    excluded = _rows(dtype, [0.0, -INF, 1.0], [-INF, 2.0, 0.5], [-INF, 1.0, -INF])
    return [
        Point((x, one), note="ordinary"),
        Point((x, one), {"entropy": True, "temperature": 0.5}, note="entropy, colder"),
        Point((x, three), {"temperature": 2.0}, note="several in a row, some twice"),
        Point((x, torch.tensor([2, -100, 1])), {"entropy": True}, note="ignored"),
        Point((x, three), {"ignore_index": 2, "entropy": True}, note="some of a row ignored"),
        Point((x.reshape(1, 3, 4), one.reshape(1, 3)), note="more dimensions"),
        Point((x[0], torch.tensor(3)), {"entropy": True}, note="one row"),
        Point((excluded, torch.tensor([[0, 2], [1, 2], [1, 1]])), {"entropy": True}, note="-inf", extreme=True),
        Point((excluded, torch.tensor([1, 1, 0])), note="what is picked is excluded", extreme=True),
        Point(
            (_rows(dtype, [0.0, 40.0, 1.0], [0.0, 800.0, 1.0]), torch.tensor([0, 1])), note="one leads", extreme=True
        ),
    ]


def _in_torch(
    logits: Tensor,
    index: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    ignore_index: int = -100,
    dtype: torch.dtype | None = None,
) -> Any:
    logs = torch.log_softmax(logits if temperature == 1 else logits / temperature, -1, dtype=dtype)
    places = index.unsqueeze(-1) if index.dim() < logits.dim() else index
    ignored = places == ignore_index
    picked = logs.gather(-1, places.masked_fill(ignored, 0)).masked_fill(ignored, 0.0)
    picked = picked.masked_fill(picked == -INF, -INF).reshape(index.shape)  # without the cotangent there
    return (picked, _entropy_in_torch(logits, temperature=temperature, dtype=dtype)) if entropy else picked


def _entropy_in_torch(logits: Tensor, *, temperature: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    logs = torch.log_softmax(logits if temperature == 1 else logits / temperature, -1, dtype=dtype)
    return -(logs.exp() * logs.masked_fill(logs == -INF, 0.0)).sum(-1)


def _topk_in_torch(logits: Tensor, k: int, *, temperature: float = 1.0, dtype: torch.dtype | None = None) -> Any:
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, -1, dtype=dtype).topk(k)


def _together(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else torch.cat([part.reshape(-1) for part in out])


@overload
def selective_log_softmax(
    logits: Tensor,
    index: Tensor,
    *,
    temperature: float = ...,
    entropy: Literal[False] = ...,
    ignore_index: int = ...,
    dtype: torch.dtype | None = ...,
) -> Tensor: ...


@overload
def selective_log_softmax(
    logits: Tensor,
    index: Tensor,
    *,
    temperature: float = ...,
    entropy: Literal[True],
    ignore_index: int = ...,
    dtype: torch.dtype | None = ...,
) -> tuple[Tensor, Tensor]: ...


@cheaper(
    forward="out = log(softmax(logits / T))[index], 0 where ignored; with the entropy of each row",
    gradient={"logits": "(scatter(g) - p (sum(g) + h (log p + H))) / T; without g where ignored or -inf"},
    replaces=_in_torch,
    goal=Goal(time=0.85, peak=0.36, kept=0.01),
    domain="every number; -inf excludes a class, and out is -inf with gradient 0 where it is picked",
    bars=BARS,
    examples=_examples,
    ordinary=lambda: (torch.randn(2048, 32000), torch.randint(0, 32000, (2048,))),
    observed=_together,
    paper="trl#2709; verl#6593; the softmax is computed again",
)
def selective_log_softmax(
    logits: Tensor,
    index: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    ignore_index: int = -100,
    dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the log-probabilities of chosen classes: ``log_softmax(logits / temperature, -1).gather(-1, index)``.

    For the backward only ``logits`` and ``index`` are kept, and the gradient is the only tensor of the size of the
    logits that is made. Rows whose cotangents are 0, as those of prompts and padding, cost next to nothing in the
    backward.

    To predict the next token, shift the index and not the logits: the gradient of ``logits[:, :-1]`` is one more
    tensor of their size. ``torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)`` is such an index.

    Arguments:
        logits: floating point, of shape (..., classes).
        index: int64, of shape (...) for one class in each row, or (..., k) for several; one may be there twice.
        temperature: a positive number, by which the logits are divided.
        entropy: whether to return the entropy of each row as well, in nats: of every one, also where ``index`` is
            ignored. One backward is that of both.
        ignore_index: the index for which the result is 0, with gradient 0.
        dtype: what to compute and return, like that of ``torch.log_softmax``; by default that of the logits, for half
            types computed in float32 and rounded.

    Returns:
        a tensor of the shape of ``index``; with ``entropy`` a tuple of it and one of the shape (...).

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype.
        OptionError: ``temperature`` is not positive, or ``dtype`` not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 1.0]], requires_grad=True)
        >>> out = gw.fused.selective_log_softmax(logits, torch.tensor([1, 1]))
        >>> out.detach(), torch.autograd.grad(out.sum(), logits)
        (tensor([-0.6931, -0.3133]), (tensor([[-0.5000,  0.5000],
                [-0.2689,  0.2689]]),))
        >>> _, entropy = gw.fused.selective_log_softmax(logits, torch.tensor([1, 1]), entropy=True)
        >>> entropy.detach()
        tensor([0.6931, 0.5822])
    """
    name = "selective_log_softmax"
    _check(name, logits, temperature, dtype)
    _check_index(name, logits, index)
    places = index.unsqueeze(-1) if index.dim() < logits.dim() else index
    if not entropy:
        return picked(logits, places, temperature, ignore_index, dtype or logits.dtype).view(index.shape)
    out, total = picked_and_entropy(logits, places, temperature, ignore_index, dtype or logits.dtype)
    return out.view(index.shape), total


def _entropy_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _rows(dtype, [0.5, -1.25, 2.0, 0.125], [3.0, 3.0, -0.75, 1.5])
    excluded = _rows(dtype, [0.0, -INF, 1.0], [-INF, 1.0, -INF])
    return [
        Point((x,), note="ordinary"),
        Point((x.reshape(2, 2, 2),), {"temperature": 0.5}, note="more dimensions, colder"),
        Point((x[0],), {"temperature": 2.0}, note="one row"),
        Point((excluded,), note="-inf", extreme=True, scale=1.0),
        Point((_rows(dtype, [0.0, 40.0, 1.0]),), note="one leads", extreme=True, scale=1.0),
    ]


@cheaper(
    forward="out = -sum(p log(p)) with p = softmax(logits / T)",
    gradient={"logits": "-g p (log p + out) / T, 0 where p is 0"},
    replaces=_entropy_in_torch,
    goal=Goal(time=0.85, peak=0.3, kept=0.01),
    domain="every number; -inf is a probability of 0, and the entropy of a row of them is 0",
    bars=BARS,
    examples=_entropy_examples,
    ordinary=lambda: (torch.randn(1024, 32000),),
    paper="verl#6593; the softmax is computed again",
)
def entropy_from_logits(logits: Tensor, *, temperature: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    """Return the entropy of each row of logits, in nats.

    For the backward only ``logits`` are kept. ``gw.stable.entropy`` keeps all digits where one class is certain.

    Arguments:
        logits: floating point, of shape (..., classes).
        temperature: a positive number, by which the logits are divided.
        dtype: what to compute and return; by default that of the logits, for half types computed in float32.

    Returns:
        a tensor of the shape (...).

    Raises:
        ArgumentError: ``logits`` is not floating point, or has no dimension.
        OptionError: ``temperature`` is not positive, or ``dtype`` not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.entropy_from_logits(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
        tensor([0.6931, 0.5822])
    """
    _check("entropy_from_logits", logits, temperature, dtype)
    none = logits.new_empty((*logits.shape[:-1], 0), dtype=torch.int64)
    return picked_and_entropy(logits, none, temperature, -100, dtype or logits.dtype)[1]


def _topk_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _rows(dtype, [0.5, -1.25, 2.0, 0.125], [3.0, 2.5, -0.75, 1.5])
    return [
        Point((x, 2), note="ordinary"),
        Point((x.reshape(2, 1, 4), 4), {"temperature": 0.5}, note="all, colder"),
        Point((x[0], 1), {"temperature": 2.0}, note="one row"),
        Point((_rows(dtype, [0.0, -INF, 1.0, -INF]), 2), note="-inf", extreme=True),
    ]


@cheaper(
    forward="values = the k largest of log(softmax(logits / T)), indices = their classes",
    gradient={"logits": "(scatter(g) - p sum(g)) / T"},
    replaces=_topk_in_torch,
    goal=Goal(time=0.85, peak=0.36, kept=0.01),
    domain="every number; -inf excludes a class",
    bars=BARS,
    examples=_topk_examples,
    ordinary=lambda: (torch.randn(1024, 32000), 16),
    observed=lambda out: out[0],
    paper="the softmax is computed again",
)
def topk_log_softmax(logits: Tensor, k: int, *, temperature: float = 1.0, dtype: torch.dtype | None = None) -> TopK:
    """Return the ``k`` largest log-probabilities of each row, largest first, and their classes.

    They are those of ``log_softmax(logits / temperature, -1).topk(k)``, for distillation from and of the likeliest
    classes; beyond the result, only ``logits`` are kept for the backward. At classes that a teacher chose,
    :func:`selective_log_softmax` gives those of the student.

    Arguments:
        logits: floating point, of shape (..., classes).
        k: how many, at most as many as there are classes.
        temperature: a positive number, by which the logits are divided.
        dtype: what to compute and return; by default that of the logits, for half types computed in float32.

    Returns:
        ``values`` and ``indices``, both of the shape (..., k).

    Raises:
        ArgumentError: ``logits`` is not floating point or has no dimension, or ``k`` is no such number.
        OptionError: ``temperature`` is not positive, or ``dtype`` not floating point.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.topk_log_softmax(torch.tensor([[0.0, 1.0, 0.0]]), 1)
        TopK(values=tensor([[-0.5514]]), indices=tensor([[1]]))
    """
    name = "topk_log_softmax"
    _check(name, logits, temperature, dtype)
    _check_count(name, logits, k)
    indices = logits.detach().topk(k, -1).indices
    return TopK(picked(logits, indices, temperature, -100, dtype or logits.dtype), indices)


def _check(name: str, logits: Tensor, temperature: float, dtype: torch.dtype | None) -> None:
    require_floating(name, logits=logits)
    require_number(name, temperature=temperature)
    if not logits.dim():
        raise ArgumentError(f"{name}: logits has no dimension; expected (..., classes); stack the logits of a row.")
    if not 0 < temperature < INF:
        raise OptionError(
            f"{name}: temperature is {temperature}; expected a positive number; for greedy choices, use argmax."
        )
    if dtype is not None and not getattr(dtype, "is_floating_point", False):
        raise OptionError(f"{name}: dtype is {dtype}; expected a floating-point dtype; write dtype=torch.float32, say.")


def _check_count(name: str, logits: Tensor, k: object) -> None:
    classes = logits.shape[-1]
    if not isinstance(k, (int, torch.SymInt)) or not 0 <= k <= classes:
        raise ArgumentError(
            f"{name}: k is {k!r}; expected an int from 0 to {classes}, the number of classes; correct it."
        )


def _check_index(name: str, logits: Tensor, index: Tensor) -> None:
    if not isinstance(index, Tensor):
        raise not_a_tensor(name, "index", index, "a tensor of class indices")
    if index.dtype != torch.int64:
        raise ArgumentError(f"{name}: index is {index.dtype}; expected int64 for class indices; write `index.long()`.")
    lead = logits.shape[:-1]
    if index.shape != lead and (not index.dim() or index.shape[:-1] != lead):
        several = ", ".join([*map(str, lead), "k"])
        raise ArgumentError(
            f"{name}: index has the shape {tuple(index.shape)}; expected {tuple(lead)} or ({several}) for logits of "
            f"{tuple(logits.shape)}: one class in each row, or k of them; correct the shape."
        )
