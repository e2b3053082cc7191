"""Which tensors are differentiated, and which are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import SampleError
from tests.subjects import Exp, x


def nested(layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([x(3), x(2)], layout=layout)


@pytest.mark.parametrize("subject", [Exp, torch.exp])
def test_a_tensor_without_numbers_is_refused(subject: Any) -> None:
    with pytest.raises(SampleError, match=r"is a meta tensor.*no numbers.*torch.randn\(\(3,\)"):
        gw.check(subject, torch.empty(3, dtype=torch.float64, device="meta"))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused(layout: torch.layout) -> None:
    with pytest.raises(SampleError, match=r"is a nested tensor.*its components"):
        gw.check(torch.sin, nested(layout))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_compressed_sparse_tensor_is_refused_unless_it_is_a_constant() -> None:
    matrix = torch.eye(3, dtype=torch.float64).to_sparse_csr()
    with pytest.raises(SampleError, match="has the layout sparse_csr; expected a strided or sparse COO tensor"):
        gw.check(torch.mv, matrix, x(3))
    report = gw.check(torch.mv, matrix, x(3).requires_grad_(), only="matches-differences")
    assert report["matches-differences"].verdict == "pass"


def test_a_square_sparse_tensor_is_differentiated() -> None:
    matrix = torch.eye(3, dtype=torch.float64).to_sparse()
    report = gw.check(lambda s: s.to_dense() ** 2, matrix, only="matches-differences")
    assert report["matches-differences"].verdict == "pass"
