"""Layers of torch.nn: their parameters become inputs, some keep state or draw random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.controls.entries import DOUBLE, Control, control, u, x

SEQUENCE = (3, 2, 4)
IMAGE = (1, 2, 5, 5)


def double(make: Callable[[], nn.Module], *inputs: Any) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """Return what makes the layer in float64, always with the same weights."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            return make().to(DOUBLE), inputs

    return build


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "Linear": (lambda: nn.Linear(3, 2), (x(4, 3),)),
    "Linear without bias": (lambda: nn.Linear(3, 2, bias=False), (x(4, 3),)),
    "Linear of a vector": (lambda: nn.Linear(3, 2), (x(3),)),
    "Bilinear": (lambda: nn.Bilinear(2, 3, 2), (x(4, 2), x(4, 3, seed=1))),
    "Identity": (nn.Identity, (x(3),)),
    "Flatten": (nn.Flatten, (x(2, 3, 2),)),
    "Conv1d": (lambda: nn.Conv1d(2, 2, 3, padding=1), (x(1, 2, 6),)),
    "Conv2d": (lambda: nn.Conv2d(2, 2, 3, stride=2), (x(*IMAGE),)),
    "Conv2d in groups": (lambda: nn.Conv2d(2, 2, 3, groups=2, dilation=2, padding=2), (x(*IMAGE),)),
    "Conv3d": (lambda: nn.Conv3d(1, 1, 2), (x(1, 1, 3, 3, 3),)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 1, 3, stride=2), (x(1, 2, 4),)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 1, 3, output_padding=1, stride=2), (x(1, 2, 3, 3),)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (x(5, 3),)),
    "BatchNorm1d in evaluation": (lambda: nn.BatchNorm1d(3).eval(), (x(5, 3),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), (x(2, 2, 3, 3),)),
    "BatchNorm1d without statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (x(5, 3),)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (x(3, 4),)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (x(2, 4, 3),)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(2, affine=True), (x(2, 2, 4),)),
    "InstanceNorm2d with statistics": (lambda: nn.InstanceNorm2d(2, track_running_stats=True), (x(2, 2, 3, 3),)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (x(3, 4),)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (x(1, 3, 2, 2),)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (x(1, 2, 6),)),
    "MaxPool2d, overlapping": (lambda: nn.MaxPool2d(3, stride=1, padding=1), (x(1, 1, 4, 4),)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (x(1, 1, 4, 4),)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (x(1, 1, 5, 3),)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(2), (x(1, 2, 5),)),
    "LPPool1d": (lambda: nn.LPPool1d(2, 2), (u(1, 1, 6),)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=2), (x(1, 1, 5, 5),)),
    "ReLU": (nn.ReLU, (x(6),)),
    "PReLU": (nn.PReLU, (x(6),)),
    "RReLU": (nn.RReLU, (x(6),)),
    "GELU": (nn.GELU, (x(6),)),
    "GELU with tanh": (lambda: nn.GELU(approximate="tanh"), (x(6),)),
    "GLU": (nn.GLU, (x(6),)),
    "Softmax": (lambda: nn.Softmax(dim=-1), (x(2, 3),)),
    "Softmax2d": (nn.Softmax2d, (x(1, 3, 2, 2),)),
    "Dropout": (nn.Dropout, (x(8),)),
    "Dropout in evaluation": (lambda: nn.Dropout().eval(), (x(8),)),
    "AlphaDropout": (nn.AlphaDropout, (x(8),)),
    "Dropout2d": (nn.Dropout2d, (x(2, 3, 2, 2),)),
    "Embedding": (lambda: nn.Embedding(5, 2), (torch.tensor([1, 1, 4]),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 2, mode="max"), (torch.tensor([[1, 2], [4, 0]]),)),
    "RNN": (lambda: nn.RNN(4, 3), (x(*SEQUENCE),)),
    "LSTM": (lambda: nn.LSTM(4, 3), (x(*SEQUENCE),)),
    "GRU": (lambda: nn.GRU(4, 3, bidirectional=True), (x(*SEQUENCE),)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), (x(2, 4),)),
    "GRUCell": (lambda: nn.GRUCell(4, 3), (x(2, 4),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (x(3, 1, 4), x(3, 1, 4, seed=1), x(3, 1, 4, seed=2))),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0), (x(3, 1, 4),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), (x(1, 1, 2, 3),)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (x(1, 4, 2, 2),)),
    "Fold": (lambda: nn.Fold((3, 3), 2), (x(1, 4, 4),)),
    "Unfold": (lambda: nn.Unfold(2), (x(1, 1, 3, 3),)),
    "CosineSimilarity": (nn.CosineSimilarity, (x(2, 3), x(2, 3, seed=1))),
    "PairwiseDistance": (nn.PairwiseDistance, (x(2, 3), x(2, 3, seed=1))),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, (x(3, 4), torch.tensor([0, 3, 1]))),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), (x(2, 3),)),
    "spectral_norm in evaluation": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)).eval(),
        (x(2, 3),),
    ),
    "Sequential": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (x(5, 3),)),
    "Sequential with a frozen layer": (
        lambda: nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 1)),
        (x(5, 3),),
    ),
}

CONTROLS: list[Control] = [
    *(Control(name, double(make, *inputs)) for name, (make, inputs) in LAYERS.items()),
    control("float32 Linear", nn.Linear(3, 2), torch.linspace(-1, 1, 12).reshape(4, 3)),
    control("bfloat16 Linear", nn.Linear(3, 2).bfloat16(), torch.linspace(-1, 1, 12).reshape(4, 3).bfloat16()),
]
