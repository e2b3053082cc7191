"""What else runs on a CPU: Liger's chunked losses, cut-cross-entropy's compiled way, and entmax.

The other losses and layers of Liger are kernels for Triton, which has no CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import _anchors
import torch
from torch import Tensor

REQUIREMENTS = {
    "liger_kernel": "liger-kernel==0.8.5",
    "cut_cross_entropy": "cut-cross-entropy==25.1.1",
    "entmax": "entmax==1.3",
}


def install() -> None:
    """Install them once, and put them on the path."""
    _anchors.install("fused-anchors", REQUIREMENTS)


def cut_cross_entropy() -> Callable[[Tensor, Tensor, Tensor], Any]:
    """Return its loss of hidden states, weight and targets, as it is where there is no Triton."""
    with mock.patch("platform.system", return_value="Darwin"):  # elsewhere it imports its kernels, and so Triton
        from cut_cross_entropy import linear_cross_entropy

    return lambda x, weight, target: linear_cross_entropy(x, weight, target, impl="torch_compile")


def liger_distillation(beta: float, *, compiled: bool) -> Callable[..., Any]:
    """Return Liger's divergence of a student from a teacher: of Kullback-Leibler where beta is 0, else Jensen-Shannon.

    Its function takes the hidden states and the weight of the student, then those of the teacher.
    """
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=beta, compiled=compiled)

    def run(x: Tensor, weight: Tensor, other: Tensor, other_weight: Tensor) -> Any:
        return loss(x, weight, other, other_weight, torch.zeros(len(x), dtype=torch.long))

    return run


def liger_dpo(beta: float, *, compiled: bool) -> Callable[..., Any]:
    """Return Liger's loss of preferences, of hidden states with the chosen first, weight and tokens."""
    from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss

    loss = LigerFusedLinearDPOLoss(beta=beta, use_ref_model=False, compiled=compiled)
    return lambda x, weight, tokens: loss(weight, x, tokens)[0]


def liger_grpo(epsilon: float, *, compiled: bool) -> Callable[..., Any]:
    """Return Liger's clipped policy loss, of hidden states, weight, tokens, advantages and old log-probabilities."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, epsilon_low=epsilon, epsilon_high=epsilon, loss_type="grpo", use_ref_model=False, compiled=compiled
    )

    def run(x: Tensor, weight: Tensor, tokens: Tensor, advantages: Tensor, old: Tensor) -> Any:
        return loss(x, weight, tokens, torch.ones(tokens.shape), advantages, old_per_token_logps=old)[0]

    return run


def entmax() -> Any:
    """Return the package."""
    import entmax

    return entmax
