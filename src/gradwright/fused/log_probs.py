"""A linear layer and the log-probabilities of the tokens that were taken: policy gradients and preference losses.

Losses such as those of GRPO, PPO and DPO are functions of ``log softmax(z)[index]`` of each token, and of nothing else
of the logits. Here these are never whole; see :mod:`gradwright.fused.heads`. What comes in for each token is unknown in
the forward, so that the logits are computed again in the backward. Where logits are there anyway, use
:func:`~gradwright.fused.selective.selective_log_softmax`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwright.authoring.catalogue import Example
from gradwright.authoring.cheaper import Goal, cheaper
from gradwright.authoring.exact import HALF, Point, relative
from gradwright.errors import ArgumentError
from gradwright.fused.head_arguments import (
    IGNORED,
    check_bend,
    flat_head,
    require_block,
    require_classes,
    require_one_device,
)
from gradwright.fused.heads import each
from gradwright.fused.log_prob_rows import LogProbs
from gradwright.stable.arguments import not_a_tensor


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    generator = torch.Generator().manual_seed(0)

    def learned(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    x, w, b = learned(5, 3), learned(7, 3), learned(7)
    index = torch.tensor([0, 6, -100, 3, 3])
    both: dict[str, Any] = {"entropy": True, "temperature": 2.0}
    return [
        Point((x, w, index), note="ordinary"),
        Point((x, w, index), {**both, "softcap": 4.0, "linear_bias": b, "block": 2}, note="entropy, every option"),
        Point((learned(2, 2, 3), w.detach(), torch.tensor([[1, 2], [0, 3]])), both, note="a frozen weight"),
        Point((learned(3), w, torch.tensor(2)), note="one row"),
    ]


def _replaces(
    x: Tensor,
    linear_weight: Tensor,
    index: Tensor,
    *,
    linear_bias: Tensor | None = None,
    entropy: bool = False,
    ignore_index: int = -100,
    temperature: float = 1.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    block: int | None = None,
) -> Any:
    logits = nn.functional.linear(x, linear_weight, linear_bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logs = torch.log_softmax(logits / temperature, -1)
    kept = index != ignore_index
    found = torch.where(kept, logs.gather(-1, torch.where(kept, index, 0).unsqueeze(-1)).squeeze(-1), 0.0)
    return (found, torch.where(kept, -(logs.exp() * logs).sum(-1), 0.0)) if entropy else found


def _ordinary() -> tuple[Any, ...]:
    x, w = torch.randn(2048, 512), torch.randn(32000, 512) * 0.04
    return x.requires_grad_(), w.requires_grad_(), torch.randint(0, 32000, (2048,))


@cheaper(
    forward="out = log(softmax(softcap tanh((x @ linear_weight.T + linear_bias) / softcap) / temperature))[index]",
    gradient={
        "x": "d @ linear_weight with d = g (onehot(index) - softmax(z)), block by block",
        "linear_weight": "d.T @ x",
        "linear_bias": "d.sum(0)",
    },
    replaces=_replaces,
    kept=lambda x, linear_weight, index, **_: 8 * (x.numel() + 4 * index.numel() + 8),  # x where rows are left out
    goal=Goal(time=1.4, peak=1 / 7),
    domain="every number; -inf where a class has the logit -inf",
    bars=relative(1e-12, 1e-6, *HALF),
    examples=_examples,
    ordinary=_ordinary,
    observed=lambda out: torch.cat([part.reshape(-1) for part in out]) if isinstance(out, tuple) else out,
    paper="Shao et al. 2024 (GRPO), arXiv 2402.03300; Rafailov et al. 2023 (DPO), arXiv 2305.18290",
)
def linear_log_probs(
    x: Tensor,
    linear_weight: Tensor,
    index: Tensor,
    *,
    linear_bias: Tensor | None = None,
    entropy: bool = False,
    ignore_index: int | None = -100,
    temperature: float = 1.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    block: int | None = None,
) -> Any:
    """Return ``log_softmax(linear(x, linear_weight, linear_bias))[index]`` of each row without holding the logits.

    Arguments:
        x: the input of the layer: floating point, of shape (..., features).
        linear_weight: of shape (classes, features), in the dtype of ``x``; autocast casts both as it does for a layer.
        index: the class that was taken (int64), of shape (...).
        linear_bias: of shape (classes), or None.
        entropy: return the entropy of each row as well, from the same product.
        ignore_index: an index that does not count, None is -100: its results are 0, without a gradient and at no cost.
        temperature: what logits are divided by.
        softcap: replaces logits by ``softcap * tanh(logits / softcap)``, before that.
        dtype: of the result; None is that of the logits, under autocast float32. It is computed in at least float32,
            and in less than that the ratios of two policies have two digits: for those, pass ``torch.float32``.
        block: how many rows of logits are held at one time; None is 256, or more where classes are few.

    Returns:
        the log-probabilities, of shape (...); with ``entropy`` a tuple of these and the entropies, in nats.

    Raises:
        ArgumentError: a tensor has the wrong shape or dtype.
        OptionError: an option is none of its choices.

    Example:
        The loss of GRPO for tokens with advantages, and that of DPO for pairs of sequences:

        >>> import torch, gradwright as gw
        >>> x, w = torch.ones(4, 2, 3, requires_grad=True), torch.eye(3)
        >>> index = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0]])
        >>> logs = gw.fused.linear_log_probs(x, w, index)
        >>> ratio = torch.exp(logs - logs.detach())
        >>> advantage = torch.tensor([[1.0], [-1.0], [0.5], [0.0]])
        >>> grpo = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        >>> chosen, rejected = logs.sum(1).chunk(2)
        >>> dpo = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        >>> round(grpo.item(), 4), round(dpo.item(), 4)
        (-0.125, 0.6931)
    """
    name = "linear_log_probs"
    if not isinstance(index, Tensor):
        raise not_a_tensor(name, "index", index, "an int64 tensor of classes")
    bend = check_bend(name, softcap, temperature)
    require_block(name, block)
    head = flat_head(name, x, linear_weight, linear_bias, dtype)
    if index.dtype != torch.int64 or index.shape != head.leading:
        raise ArgumentError(
            f"{name}: index is {index.dtype} of shape {tuple(index.shape)}; expected int64 of shape "
            f"{tuple(head.leading)}, one class for each row of x; write `index.long()` or reshape it."
        )
    require_one_device(name, x, index=index)
    flat = index.reshape(-1)
    kept = flat != (IGNORED if ignore_index is None else ignore_index)
    rows = LogProbs(bool(entropy))
    by_row = (torch.where(kept, flat, 0), kept)
    require_classes(name, "index", by_row[0], head.classes)
    found = each(head.x, head.weight, head.bias, rows, by_row, (), bend=bend, kept=kept, block=block)
    found = found.to(head.dtype)
    parts = tuple(part.reshape(head.leading) for part in found.unbind(1))
    return parts if entropy else parts[0]
