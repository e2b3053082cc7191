"""Rows of logits: the log-probabilities of some classes, the entropy, and the gradient of both.

A row ``x`` are the logits of one position, and ``p = softmax(x / T)`` its probabilities at a temperature ``T``. The
gradient of ``sum(g log p[index]) + h H`` with the entropy ``H = -sum(p log p)`` is ``(scatter(g) - p (sum(g) + h (log p
+ H))) / T``. It needs the logits alone, so that nothing of their size is kept: the softmax is computed again, in blocks
of rows that stay in the cache.

A class with the logit ``-inf`` is excluded: ``0 log 0 = 0``, and it has no gradient. A row of nothing else has the
probabilities 0 and the entropy 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import HALF
from gradwright.fused.route import block_rows, by_hand
from gradwright.stable.arguments import widened

INF = math.inf


def rows_of(x: Tensor) -> Tensor:
    """Return a tensor with one row for each row of its last dimension."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def row_blocks(x: Tensor, size: int) -> Iterator[Tensor]:
    """Give the rows of a tensor in their order, in blocks of at most ``size``; no more than one of them is copied.

    They cannot be one matrix where the rows of a part were left out, as in ``logits[:, :-1]``.
    """
    if not x.numel():
        return
    inner = math.prod(x.shape[1:-1])
    if x.dim() <= 2 or _evenly_spaced(x):
        rows = rows_of(x)
        for start in range(0, rows.shape[0], size):
            yield rows[start : start + size]
    elif inner > size:
        for part in x:
            yield from row_blocks(part, size)
    else:
        step = size // inner
        for start in range(0, x.shape[0], step):
            yield rows_of(x[start : start + step])


def _evenly_spaced(x: Tensor) -> bool:
    """Tell whether all dimensions but the last one can be made one without a copy."""
    strides = x.stride()[:-1]
    return all(outer == inner * n for outer, inner, n in zip(strides, strides[1:], x.shape[1:-1]))


def tempered_blocks(x: Tensor, size: int, temperature: float, dtype: torch.dtype) -> Iterator[Tensor]:
    """Give the rows of ``x / temperature`` in a dtype, in blocks, each of which may be overwritten by the next one."""
    if x.dtype == dtype and temperature == 1:
        yield from row_blocks(x, size)
        return
    own = x.new_empty(size, x.shape[-1], dtype=dtype)
    for block in row_blocks(x, size):
        z = own[: block.shape[0]].copy_(block)
        yield z if temperature == 1 else z.div_(temperature)


# -------------------------------------------------------------------- one block, in memory that is given


def taken_entropy(logs: Tensor, p: Tensor) -> Tensor:
    """Return the entropy of each row, which keeps its dimension, and write ``p log p`` over the logarithms."""
    logs.clamp_(min=torch.finfo(logs.dtype).min).mul_(p)  # 0 times the least number is 0, and times -inf is nan
    return logs.sum(-1, keepdim=True).neg_()


def write_slope(z: Tensor, index: Tensor, g: Tensor, out: Tensor) -> None:
    """Write the gradient of ``sum(g log p[index])`` by a block ``z`` into ``out``; nan in a row of ``-inf``."""
    torch.softmax(z, -1, out=out)
    out.mul_(g.sum(-1, keepdim=True).neg_()).scatter_add_(-1, index, g)


def write_joint_slope(z: Tensor, index: Tensor, g: Tensor, h: Tensor, out: Tensor, logs: Tensor) -> None:
    """Write the gradient of ``sum(g log p[index]) + h H``; ``logs`` is memory of the size of ``out`` to work in."""
    torch.log_softmax(z, -1, out=logs)
    torch.exp(logs, out=out)
    entropy = taken_entropy(logs, out)
    share = torch.addcmul(g.sum(-1, keepdim=True), h, entropy)
    out.mul_(share.neg_()).addcmul_(logs, h, value=-1).scatter_add_(-1, index, g)


# -------------------------------------------------------------------- all rows, in blocks


def block_values(
    x: Tensor, index: Tensor, temperature: float, dtype: torch.dtype, entropy: Tensor | None = None
) -> Tensor:
    """Return the log-probabilities of the classes ``index``, of which each row has some, in a dtype.

    The entropy of each row is written into ``entropy``, a tensor of that dtype, where it is wanted.
    """
    picked = x.new_empty(index.shape, dtype=dtype)
    places, found = rows_of(index), rows_of(picked)
    buffers = 1 if entropy is None else 2
    size = block_rows(places.shape[0], x.shape[-1], buffers * dtype.itemsize, x.device)
    own = x.new_empty(buffers, size, x.shape[-1], dtype=dtype)
    start = 0
    for z in tempered_blocks(x, size, temperature, dtype):
        here = slice(start, start := start + z.shape[0])
        logs, *others = own[:, : z.shape[0]]
        torch.log_softmax(z, -1, out=logs)
        torch.gather(logs, -1, places[here], out=found[here])
        if entropy is not None:
            torch.exp(logs, out=others[0])
            each = taken_entropy(logs, others[0]).squeeze(-1)
            entropy.view(-1)[here] = each.masked_fill_(z.amax(-1) == -INF, 0.0)
    return picked


def block_slope(g: Tensor, h: Tensor | None, x: Tensor, index: Tensor, temperature: float) -> Tensor:
    """Return the gradient by ``x`` of ``sum(g log p[index]) + h H``; it is computed in the dtype of ``g``.

    Rows whose cotangents are 0 are left out, whatever their logits.
    """
    out = x.new_empty(x.shape)
    written, places = rows_of(out), rows_of(index)
    g, h = rows_of(g) / temperature, None if h is None else h.reshape(-1, 1) / temperature
    wanted = (g != 0).any(-1)
    wanted = wanted if h is None else wanted | (h != 0).squeeze(-1)
    size = block_rows(places.shape[0], x.shape[-1], g.dtype.itemsize * (1 if h is None else 2), x.device)
    scratch = x.new_empty(0 if h is None else size, x.shape[-1], dtype=g.dtype)
    own = None if x.dtype == g.dtype else x.new_empty(size, x.shape[-1], dtype=g.dtype)
    start = 0
    for z in tempered_blocks(x, size, temperature, g.dtype):
        count = z.shape[0]
        here = slice(start, start := start + count)
        rows = wanted[here] if h is None else wanted[here] & (z.amax(-1) != -INF)
        left = int(rows.sum())
        if not left:
            written[here] = 0.0
            continue
        target = written[here] if own is None else own[:count]
        if h is None:
            write_slope(z, places[here], g[here], target)
        else:
            write_joint_slope(z, places[here], g[here], h[here], target, scratch[:count])
        if left < count:
            target.masked_fill_(~rows.unsqueeze(-1), 0.0)
        if own is not None:
            written[here] = target
    return out


# -------------------------------------------------------------------- the same as formulae that PyTorch can follow


def distribution(x: Tensor, temperature: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return probabilities and their logarithms, both 0 where a class is excluded."""
    z = x.to(dtype) if temperature == 1 else x.to(dtype) / temperature
    excluded = z == -INF
    empty = excluded.all(-1, keepdim=True)
    logs = torch.log_softmax(z.masked_fill(empty, 0.0), -1)
    return logs.exp().masked_fill(empty, 0.0), logs.masked_fill(excluded, 0.0)


def plain_entropy(p: Tensor, logs: Tensor) -> Tensor:
    """Return the entropy of each row, which keeps its dimension."""
    return -(p * logs).sum(-1, keepdim=True)


def plain_slope(g: Tensor, h: Tensor | None, x: Tensor, index: Tensor, temperature: float) -> Tensor:
    """Return the same as :func:`block_slope`."""
    p, logs = distribution(x, temperature, g.dtype)
    share = g.sum(-1, keepdim=True)
    if h is not None:
        share = share + h.unsqueeze(-1) * (logs + plain_entropy(p, logs))
    return ((-p * share).scatter_add(-1, index, g) / temperature).to(x.dtype)


# -------------------------------------------------------------------- functions with their gradient


@custom_gradient
def picked(x: Tensor, index: Tensor, temperature: float, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Return log-probabilities of the classes ``index``, of which each row has some; 0 where they are ignored."""
    index, kept, excluded = _places(x, index, ignore_index)
    wide = _computed_in(dtype)
    if by_hand(x, index) and x.numel():
        logs = block_values(x, index, temperature, wide)
    else:
        logs = distribution(x, temperature, wide)[1].gather(-1, index)
    return _told(logs, kept, excluded).to(dtype)


@picked.vjp
def picked_vjp(g: Tensor, x: Tensor, index: Tensor, temperature: float, ignore_index: int) -> dict[str, Tensor]:
    index, kept, excluded = _places(x, index, ignore_index)
    g = torch.where(kept & ~excluded, g, 0.0)
    return {"x": logit_slope(g, None, x, index, temperature)}


@custom_gradient
def picked_and_entropy(
    x: Tensor, index: Tensor, temperature: float, ignore_index: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the same and the entropy of each row."""
    index, kept, excluded = _places(x, index, ignore_index)
    wide = _computed_in(dtype)
    if by_hand(x, index) and x.numel():
        entropy = x.new_empty(x.shape[:-1], dtype=wide)
        logs = block_values(x, index, temperature, wide, entropy)
    else:
        p, all_logs = distribution(x, temperature, wide)
        logs, entropy = all_logs.gather(-1, index), plain_entropy(p, all_logs).squeeze(-1)
    return _told(logs, kept, excluded).to(dtype), entropy.to(dtype)


@picked_and_entropy.vjp
def picked_and_entropy_vjp(
    g: tuple[Tensor, Tensor], x: Tensor, index: Tensor, temperature: float, ignore_index: int
) -> dict[str, Tensor]:
    index, kept, excluded = _places(x, index, ignore_index)
    return {"x": logit_slope(torch.where(kept & ~excluded, g[0], 0.0), g[1], x, index, temperature)}


def _places(x: Tensor, index: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return indices that are in range, which of them count, and which of the classes are excluded."""
    kept = index != ignore_index
    index = torch.where(kept, index, 0)
    return index, kept, x.detach().gather(-1, index) == -INF


def _told(logs: Tensor, kept: Tensor, excluded: Tensor) -> Tensor:
    """Return what is told of the log-probabilities that were found."""
    return torch.where(kept, torch.where(excluded, -INF, logs), 0.0)


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


@custom_gradient
def logit_slope(g: Tensor, h: Tensor | None, x: Tensor, index: Tensor, temperature: float) -> Tensor:
    """Return the gradient by ``x`` of ``sum(g log p[index]) + h H``; without ``h`` there is no entropy in it."""
    g, h = widened(g), None if h is None else widened(h)
    if by_hand(g, h, x, index) and x.numel():
        return block_slope(g, h if h is not None and h.any() else None, x, index, temperature)
    return plain_slope(g, h, x, index, temperature)


@logit_slope.vjp
def logit_slope_vjp(
    u: Tensor, g: Tensor, h: Tensor | None, x: Tensor, index: Tensor, temperature: float
) -> dict[str, Tensor | None]:
    """With ``d = log p + H``, ``c = u - E u`` and means ``E`` under ``p``, the part of ``h`` is ``-h E(d c) / T``."""
    g, u = widened(g), widened(u)
    p, logs = distribution(x, temperature, g.dtype)
    centred = u - (p * u).sum(-1, keepdim=True)
    grads: dict[str, Tensor | None] = {"g": centred.gather(-1, index) / temperature}
    slope = centred * g.sum(-1, keepdim=True)
    if h is not None:
        surprise = logs + plain_entropy(p, logs)
        shared = (p * surprise * centred).sum(-1, keepdim=True)
        grads["h"] = -shared.squeeze(-1) / temperature
        slope = slope + widened(h).unsqueeze(-1) * (surprise * centred - shared + centred)
    grads["x"] = -p * slope / temperature**2
    return grads
