"""Scenarios: log-probabilities, norms, recurrences, sparse distributions, and activations in a stack of layers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import _fused_anchors
import torch
from _fused_heads import EQUAL, PLAIN
from _fused_measure import Candidate, Scenario, Target
from torch import Tensor, nn

import gradwright as gw


def selective(quick: bool) -> Scenario:
    shape = (16, 50) if quick else (2048, 32000)
    torch.manual_seed(0)
    ours, usual = "`gw.fused.selective_log_softmax`", "gather - logsumexp"
    return Scenario(
        f"log-probabilities of given tokens, logits {shape[0]} x {shape[1]}",
        (torch.randn(shape, requires_grad=True), torch.randint(shape[1], shape[:1])),
        [
            Candidate(PLAIN, lambda x, index: nn.functional.log_softmax(x, dim=-1).gather(-1, index[:, None])[:, 0]),
            Candidate(usual, lambda x, index: x.gather(-1, index[:, None])[:, 0] - torch.logsumexp(x, dim=-1)),
            Candidate(ours, lambda x, index: gw.fused.selective_log_softmax(x, index)),
        ],
        (
            Target(ours, PLAIN, "time", 0.85),
            Target(ours, PLAIN, "peak", 0.35),  # the gradient, a third of it, and 5 %
            Target(ours, PLAIN, "kept", 1e-3),
            Target(ours, usual, "time", 1.0),
        ),
    )


def llama_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rms_norm(quick: bool) -> Scenario:
    rows, width = (16, 32) if quick else (4096, 2048)
    torch.manual_seed(0)
    ours = "`gw.fused.rms_norm`"
    return Scenario(
        f"RMSNorm, {rows} x {width}",
        (torch.randn(rows, width, requires_grad=True), torch.rand(width, requires_grad=True)),
        [
            Candidate(PLAIN, llama_rms_norm),
            Candidate("`F.rms_norm`", lambda x, weight: nn.functional.rms_norm(x, (width,), weight, 1e-6)),
            Candidate(ours, lambda x, weight: gw.fused.rms_norm(x, (width,), weight, 1e-6)),
        ],
        (
            Target(ours, PLAIN, "time", 0.45),
            Target(ours, PLAIN, "peak", 0.35),  # output and gradient are a third of it
            Target(ours, PLAIN, "kept", 1e-3),
        ),
        compiled=True,
    )


def over_unbind(a: Tensor, b: Tensor) -> Tensor:
    h = torch.zeros_like(b[0])
    found = []
    for factor, term in zip(a.unbind(0), b.unbind(0)):
        h = factor * h + term
        found.append(h)
    return torch.stack(found)


def over_select(a: Tensor, b: Tensor) -> Tensor:
    h = torch.zeros_like(b[0])
    found = []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        found.append(h)
    return torch.stack(found)


def recurrence(quick: bool) -> Scenario:
    shape = (16, 2, 8) if quick else (1024, 8, 256)
    torch.manual_seed(0)
    ours, unbound, selected = "`gw.fused.linear_recurrence`", "PyTorch, loop over `unbind`", "PyTorch, loop over `a[t]`"
    return Scenario(
        f"h = a h + b, T {shape[0]}, {shape[1]} x {shape[2]}",
        (torch.rand(shape, requires_grad=True), torch.randn(shape, requires_grad=True)),
        [
            Candidate(unbound, over_unbind),
            Candidate(selected, over_select),
            Candidate(ours, lambda a, b: gw.fused.linear_recurrence(a, b, dim=0)),
        ],
        (Target(ours, unbound, "time", 0.5), Target(ours, selected, "time", 0.02)),
        compiled=False,
    )


def sparse(key: str, quick: bool) -> Scenario:
    """Return a scenario of sparse distributions; the plain way is the library for them, where it is installed."""
    rows, width = (8, 16) if quick else (4096, 512)
    alpha = (1.3,) if key == "entmax" else ()
    torch.manual_seed(0)
    ours, library = f"`gw.fused.{key}`", f"entmax, `{'entmax_bisect' if alpha else key}`"
    found = [Candidate(ours, lambda x: getattr(gw.fused, key)(x, *alpha))]
    if not quick:
        theirs = getattr(_fused_anchors.entmax(), "entmax_bisect" if alpha else key)
        found.insert(0, Candidate(library, lambda x: theirs(x, *alpha)))
    return Scenario(
        f"{key}{', alpha 1.3' if alpha else ''}, {rows} x {width}",
        (torch.randn(rows, width, requires_grad=True),),
        found,
        (
            Target(ours, library, "time", EQUAL),
            Target(ours, library, "peak", EQUAL),
        ),
        compiled=False,
    )


STACK = 6
Act = Callable[[Tensor], Tensor]
Block = Callable[[Tensor, Tensor], Tensor]


def stack(block: Block) -> Callable[..., Tensor]:
    """Return x + W2 act(W1 x), six times; ``block`` takes W1 x and W2."""

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        for up, down in zip(weights[::2], weights[1::2]):
            x = x + block(nn.functional.linear(x, up), down)
        return x

    return run


def after(act: Act) -> Block:
    return lambda h, down: nn.functional.linear(act(h), down)


ACTIVATIONS: dict[str, tuple[Act, str, Block]] = {
    "softplus": (nn.functional.softplus, "softplus", after(lambda h: gw.fused.softplus(h))),
    "elu": (nn.functional.elu, "elu", after(lambda h: gw.fused.elu(h))),
    "leaky_relu": (nn.functional.leaky_relu, "leaky_relu", after(lambda h: gw.fused.leaky_relu(h))),
    "gelu": (nn.functional.gelu, "gelu_linear", lambda h, down: gw.fused.gelu_linear(h, down)),
    "silu": (nn.functional.silu, "silu_linear", lambda h, down: gw.fused.silu_linear(h, down)),
    "mish": (nn.functional.mish, "mish_linear", lambda h, down: gw.fused.mish_linear(h, down)),
}
"""What PyTorch has, the name of what is here, and how that is used in a block."""


def activations(key: str, quick: bool) -> Scenario:
    """Return a stack with an activation, and with ReLU beside it, of which PyTorch keeps the output alone."""
    n, width, inner = (8, 4, 8) if quick else (2048, 512, 2048)
    act, name, block = ACTIVATIONS[key]
    torch.manual_seed(0)
    ours, relu = f"`gw.fused.{name}`", "PyTorch, eager, with ReLU"
    shapes = [(inner, width), (width, inner)] * STACK
    weights = [(torch.randn(shape) / shape[1] ** 0.5).requires_grad_() for shape in shapes]
    return Scenario(
        f"{key} in six blocks, N {n}, D {width}, H {inner}",
        (torch.randn(n, width, requires_grad=True), *weights),
        [
            Candidate(PLAIN, stack(after(act))),
            Candidate(relu, stack(after(nn.functional.relu)), same=False),
            Candidate(ours, stack(block)),
        ],
        (Target(ours, PLAIN, "time", 1.1), Target(ours, PLAIN, "peak", 1.0), Target(ours, relu, "kept", 1.0)),
    )


LAYERS: dict[str, dict[str, Callable[[bool], Scenario]]] = {
    "selective": {"selective": selective},
    "norms": {"rms-norm": rms_norm},
    "recurrences": {"recurrence": recurrence},
    "sparse": {key: functools.partial(sparse, key) for key in ("sparsemax", "entmax15", "entmax")},
    "activations": {f"stack-{key}": functools.partial(activations, key) for key in ACTIVATIONS},
}
"""By table and by the name that is asked for; each takes whether it is to be small."""
