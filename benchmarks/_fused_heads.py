"""Scenarios: a linear layer into a vocabulary, and a loss of its logits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import _fused_anchors
import torch
from _fused_measure import Candidate, Scenario, Target
from torch import Tensor, nn

import gradwright as gw

EQUAL = 1.05
"""Equal or better than another library, within what the clock can tell."""
BETA, EPSILON = 0.1, 0.2
PLAIN = "PyTorch, eager"


def hidden(rows: int, width: int, vocabulary: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Return hidden states, of ``rows`` or of the shape given, and a weight: their logits are of order one."""
    x = torch.randn(*(shape or (rows,)), width)
    return x.requires_grad_(), (torch.randn(vocabulary, width) / width**0.5).requires_grad_()


def eager_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(nn.functional.linear(x, weight), target)


def chunked(rows: int | None) -> Any:
    """Return PyTorch's loss in chunks of so many rows, or as many as it takes by default."""
    options = nn.LinearCrossEntropyOptions() if rows is None else nn.LinearCrossEntropyOptions(batch_chunk_size=rows)
    return lambda x, weight, target: nn.functional.linear_cross_entropy(x, weight, target, options=options)


def cross_entropy(quick: bool) -> Scenario:
    n, width, vocabulary = (32, 8, 50) if quick else (2048, 512, 32000)
    torch.manual_seed(0)
    ours, default = "`gw.fused.linear_cross_entropy`", "`F.linear_cross_entropy`, default options"
    recompute = "`gw.fused.linear_cross_entropy`, `recompute=True`"
    found = [
        Candidate(PLAIN, eager_cross_entropy),
        Candidate(default, chunked(None)),
        Candidate("`F.linear_cross_entropy`, chunks of 256", chunked(256)),
        Candidate("`F.linear_cross_entropy`, chunks of 512", chunked(512)),
        Candidate(ours, lambda x, w, t: gw.fused.linear_cross_entropy(x, w, t)),
        Candidate(recompute, lambda x, w, t: gw.fused.linear_cross_entropy(x, w, t, recompute=True)),
    ]
    cut = "cut-cross-entropy, `torch_compile`"
    if not quick:
        found.append(Candidate(cut, _fused_anchors.cut_cross_entropy()))
    return Scenario(
        f"linear + cross-entropy, N {n}, D {width}, V {vocabulary}",
        (*hidden(n, width, vocabulary), torch.randint(vocabulary, (n,))),
        found,
        (
            Target(ours, PLAIN, "time", 1.0),
            Target(ours, PLAIN, "peak", 1 / 7),
            Target(ours, default, "time", 1.0),
            Target(recompute, PLAIN, "time", 1.4),
            Target(recompute, PLAIN, "peak", 1 / 7),
            Target(ours, cut, "time", EQUAL),
            Target(ours, cut, "peak", EQUAL),
        ),
        compiled=True,
    )


def eager_distillation(beta: float) -> Any:
    """Return the plain mean over rows of the divergence of a student's distribution from a teacher's."""

    def run(x: Tensor, weight: Tensor, other: Tensor, other_weight: Tensor) -> Tensor:
        student = nn.functional.log_softmax(nn.functional.linear(x, weight), dim=-1)
        teacher = nn.functional.log_softmax(nn.functional.linear(other, other_weight), dim=-1)
        if not beta:
            return nn.functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
        mean = torch.logaddexp(student, teacher) - torch.tensor(2.0).log()
        parts = [
            nn.functional.kl_div(mean, each, reduction="batchmean", log_target=True) for each in (student, teacher)
        ]
        return beta * parts[1] + (1 - beta) * parts[0]

    return run


def distillation(kind: Literal["kl", "js"], beta: float, quick: bool) -> Scenario:
    n, width, vocabulary = (32, 8, 50) if quick else (1024, 512, 32000)
    torch.manual_seed(0)
    ours = "`gw.fused.linear_distillation`"
    found = [
        Candidate(PLAIN, eager_distillation(beta)),
        Candidate(ours, lambda *args: gw.fused.linear_distillation(*args, divergence=kind)),
    ]
    liger = ["Liger, `compiled=False`", "Liger, its default"]
    if not quick:
        found.append(Candidate(liger[0], _fused_anchors.liger_distillation(beta, compiled=False)))
        found.append(Candidate(liger[1], _fused_anchors.liger_distillation(beta, compiled=True)))
    teacher = [t.detach() for t in hidden(n, width, vocabulary)]
    return Scenario(
        f"{'Kullback-Leibler' if kind == 'kl' else 'Jensen-Shannon'} from a teacher, N {n}, D {width}, V {vocabulary}",
        (*hidden(n, width, vocabulary), *teacher),
        found,
        (
            Target(ours, PLAIN, "time", 1.0),
            *(Target(ours, each, quantity, EQUAL) for each in liger for quantity in ("time", "peak")),
        ),
    )


def log_probabilities(x: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    return nn.functional.log_softmax(nn.functional.linear(x, weight), dim=-1).gather(-1, tokens[..., None])[..., 0]


def preference_of(log_probability: Any) -> Any:
    """Return the preference loss of DPO without a reference model, from log-probabilities of tokens."""

    def run(x: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        chosen, rejected = log_probability(x, weight, tokens).sum(-1).chunk(2)
        return -nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()

    return run


def policy_of(log_probability: Any) -> Any:
    """Return the clipped loss of GRPO from log-probabilities of tokens."""

    def run(x: Tensor, weight: Tensor, tokens: Tensor, advantages: Tensor, old: Tensor) -> Tensor:
        ratio = (log_probability(x, weight, tokens) - old).exp()
        gain = advantages[:, None]
        return -torch.min(ratio * gain, ratio.clamp(1 - EPSILON, 1 + EPSILON) * gain).mean()

    return run


def from_tokens(title: str, make: Any, liger: Any, extra: Any, quick: bool) -> Scenario:
    """Return a scenario whose loss needs the log-probabilities of given tokens alone."""
    batch, length, width, vocabulary = (4, 8, 8, 50) if quick else (8, 128, 512, 32000)
    torch.manual_seed(0)
    ours = "`gw.fused.linear_log_probs`"
    found = [Candidate(PLAIN, make(log_probabilities)), Candidate(ours, make(gw.fused.linear_log_probs))]
    names = ["Liger, `compiled=False`", "Liger, its default"]
    if not quick:
        found.append(Candidate(names[0], liger(compiled=False)))
        found.append(Candidate(names[1], liger(compiled=True)))
    x, weight = hidden(0, width, vocabulary, batch, length)
    tokens = torch.randint(vocabulary, (batch, length))
    return Scenario(
        f"{title}, {batch} x {length} tokens, D {width}, V {vocabulary}",
        (x, weight, tokens, *extra(x, weight, tokens)),
        found,
        (
            Target(ours, PLAIN, "time", 1.4),  # with the logits computed again, since their cotangents come later
            *(Target(ours, each, quantity, EQUAL) for each in names for quantity in ("time", "peak")),
        ),
    )


def preference(quick: bool) -> Scenario:
    def liger(compiled: bool) -> Any:
        return _fused_anchors.liger_dpo(BETA, compiled=compiled)

    return from_tokens("DPO", preference_of, liger, lambda x, weight, tokens: (), quick)


def policy(quick: bool) -> Scenario:
    def liger(compiled: bool) -> Any:
        return _fused_anchors.liger_grpo(EPSILON, compiled=compiled)

    def extra(x: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return advantages and old log-probabilities, of which some are clipped."""
        with torch.no_grad():
            old = log_probabilities(x, weight, tokens)
        return torch.randn(len(tokens)), old + 0.2 * torch.randn_like(old)

    return from_tokens("GRPO", policy_of, liger, extra, quick)


HEADS: dict[str, dict[str, Callable[[bool], Scenario]]] = {
    "head": {"head": cross_entropy},
    "distillation": {
        "kl": functools.partial(distillation, "kl", 0.0),
        "js": functools.partial(distillation, "js", 0.5),
    },
    "policy": {"dpo": preference, "grpo": policy},
}
"""By table and by the name that is asked for; each takes whether it is to be small."""
