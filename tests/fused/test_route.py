"""Tensors without numbers go through what is followed by PyTorch, shapes and gradients alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradwright as gw

PLACES = torch.empty(8, dtype=torch.int64, device="meta")
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": lambda x, w: gw.fused.linear_cross_entropy(x, w, PLACES, entropy_bonus=0.1),
    "per row": lambda x, w: gw.fused.linear_cross_entropy(x, w, PLACES, reduction="none"),
    "distillation": lambda x, w: gw.fused.linear_distillation(x, w, x.detach() @ w.detach().t()),
    "log-probabilities": lambda x, w: gw.fused.linear_log_probs(x, w, PLACES),
    "selective": lambda x, w: gw.fused.selective_log_softmax(x @ w.t(), PLACES, entropy=True)[1],
    "top-k": lambda x, w: gw.fused.topk_log_softmax(x @ w.t(), 2).values,
    "norm": lambda x, w: gw.fused.rms_norm(x, 3, w[0]),
    "activated": lambda x, w: gw.fused.gelu_linear(x, w),
    "recurrence": lambda x, w: gw.fused.linear_recurrence(x, x, w[0], dim=0),
    "logcumsumexp": lambda x, w: gw.fused.logcumsumexp(x @ w.t(), 0),
    "product": lambda x, w: gw.fused.cumprod(x @ w.t(), 0),
    "sparse": lambda x, w: gw.fused.entmax15(x @ w.t()),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_tensors_without_numbers(name: str) -> None:
    x, w = (torch.empty(n, 3, device="meta", requires_grad=True) for n in (8, 6))
    out = CALLS[name](x, w)
    assert out.is_meta
    grads = torch.autograd.grad(out.sum(), (x, w))
    assert [grad.shape for grad in grads] == [x.shape, w.shape]
