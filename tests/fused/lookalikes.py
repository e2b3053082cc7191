"""Layers as libraries that need not be installed have them, right ones and ones that only look like it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def scattered(model: M) -> M:
    """Return a model whose parameters have no special values."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def matches(said: str, pattern: str) -> bool:
    return re.fullmatch(pattern, said) is not None


def replaced(layer: M) -> M:
    own = layer.forward
    layer.forward = lambda x: own(x)
    return layer


class Other(nn.Parameter):
    """A parameter of a class of its own, as sharding has them."""


def of_a_subclass(layer: nn.RMSNorm) -> nn.RMSNorm:
    layer.weight = Other(layer.weight.data)
    return layer


# -------------------------------------------------------------------- norms


class LlamaRMSNorm(nn.Module):
    """What has been normalised is rounded, then comes the weight."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def normed(self, x: Tensor) -> Tensor:
        return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.normed(x).to(x.dtype)


class T5LayerNorm(LlamaRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        normed = self.normed(x)
        return self.weight * (normed.to(self.weight.dtype) if self.weight.dtype == torch.bfloat16 else normed)


class RoundedRMSNorm(LlamaRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * self.normed(x)).to(x.dtype)


class GemmaRMSNorm(nn.Module):
    """The weight is added to 1, and the output is rounded."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (normed * (1.0 + self.weight.float())).type_as(x)


class DroppingRMSNorm(LlamaRMSNorm):
    """Drops elements in training."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class CentredRMSNorm(LlamaRMSNorm):
    """Is a layer norm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class OutsideRMSNorm(LlamaRMSNorm):
    """Adds outside the root."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class DetachedRMSNorm(LlamaRMSNorm):
    """Has the values of the norm and another gradient."""

    def normed(self, x: Tensor) -> Tensor:
        return x.float() * torch.rsqrt(x.detach().float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class ExponentialRMSNorm(LlamaRMSNorm):
    """Is the norm, with its gradients, as long as its weight is 1, as it is at first."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight - 1).exp() * self.normed(x).to(x.dtype)


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x if gate is None else x * gate)


class NamelessRMSNorm(LlamaRMSNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.small = self.variance_epsilon
        del self.variance_epsilon


class OwnRMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


# -------------------------------------------------------------------- language models


@dataclass
class Output:
    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None


class Config:
    final_logit_softcapping: float | None = None
    output_router_logits = False


class LanguageModel(nn.Module):
    """Takes labels, shifts them, and computes its loss itself."""

    def __init__(self, classes: int = 23, size: int = 8) -> None:
        super().__init__()
        self.config = Config()
        self.embedding = nn.Embedding(classes, size)
        self.norm = LlamaRMSNorm(size)
        self.dropout = nn.Dropout(0.3)
        self.lm_head = nn.Linear(size, classes)
        self.register_buffer("steps", torch.zeros(()))

    def bent(self, logits: Tensor) -> Tensor:
        return logits

    def beside(self, hidden: Tensor, more: dict[str, Any]) -> Tensor | float:
        """Give what comes to the loss beside the cross-entropy."""
        return 0.0

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **more: Any,
    ) -> Any:
        self.steps += 1
        hidden = self.dropout(self.norm(self.embedding(input_ids).cumsum(1)))
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.bent(self.lm_head(hidden[:, keep]))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, **more) + self.beside(hidden, more)
        return Output(loss, logits, hidden)

    def loss_function(
        self, logits: Tensor, labels: Tensor, num_items_in_batch: Any = None, scale: float = 1.0, **_: Any
    ) -> Tensor:
        following = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        reduction = "mean" if num_items_in_batch is None else "sum"
        flat = logits.float().reshape(-1, logits.shape[-1])
        loss = nn.functional.cross_entropy(flat, following, reduction=reduction)
        return scale * loss / (1 if num_items_in_batch is None else num_items_in_batch)


class Softcapped(LanguageModel):
    def __init__(self) -> None:
        super().__init__()
        self.config.final_logit_softcapping = 2.0

    def bent(self, logits: Tensor) -> Tensor:
        return 2.0 * torch.tanh(logits / 2.0)


class Scaled(LanguageModel):
    def bent(self, logits: Tensor) -> Tensor:
        return 0.5 * logits


class WithMore(LanguageModel):
    """Has a loss beside that of the tokens, when it is asked for."""

    def beside(self, hidden: Tensor, more: dict[str, Any]) -> Tensor | float:
        asked = more.get("output_router_logits", self.config.output_router_logits)
        return 0.1 * hidden.square().mean() if asked else 0.0


class Unshifted(LanguageModel):
    def loss_function(self, logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Unnamed(LanguageModel):
    """Has its last layer under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = self.lm_head
        del self.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.norm(self.embedding(input_ids)))
        return Output(None if labels is None else self.loss_function(logits, labels), logits)


class Targets(nn.Module):
    """Has other words for the labels, and returns a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(23, 8)
        self.drop = nn.Dropout(0.3)
        self.lm_head = nn.Linear(8, 23)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.lm_head(self.drop(self.wte(idx)))
        return logits, None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Tuples(LanguageModel):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        out = super().forward(input_ids, labels=labels)
        return out.loss, out.logits
