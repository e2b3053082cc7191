"""Values are written as source that gives them again, or draws others like them."""

import enum
import math
import subprocess
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwright.checking.writing import WIDTH, UnwritableError, Writer, statement, variable


class Mode(enum.Enum):
    SUM = "sum"

    @staticmethod
    def make():
        return Mode.SUM


def run(text, writer):
    scope: dict[str, Any] = {"generator": torch.Generator().manual_seed(0)}
    exec("import torch\n" + "".join(f"from {module} import {name}\n" for module, name in writer.imports), scope)
    exec(text, scope)
    return scope["value"]


def again(value, **options):
    """Write a value, run the text, and return what that gives."""
    writer = Writer(**options)
    lines = statement("value = ", writer.value(value), indent=0)
    assert max(map(len, lines)) <= WIDTH
    return run("\n".join(lines), writer)


def same(a, b):
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            and torch.equal(torch.nan_to_num(a.float()), torch.nan_to_num(b.float()))
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        ...,
        -3,
        0.1,
        math.inf,
        -math.inf,
        math.nan,
        1e-300,
        0.7 + 0.3j,
        "plain",
        "both ' and \"",
        "line\nbreak",
        b"bytes",
        (),
        (1,),
        [1, (2, [3.5, None])],
        {"a": 1, 2: (torch.float32,)},
        torch.Size([2, 3]),
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        Mode.SUM,
        Mode,
        Mode.make,
        int,
        torch.nn.functional.relu,
        math.sin,
        list(range(100)),
        ["a rather long word"] * 12,
    ],
)
def test_values_come_back(value):
    assert same(value, again(value))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(0.1),
        torch.tensor(1 / 3),
        torch.tensor([0.1, 1e-30, -3.0, math.inf, math.nan]),
        torch.tensor([[1 / 3, 2.0], [3.0, 4e300]], dtype=torch.float64),
        torch.tensor([0.1, 2.5], dtype=torch.bfloat16),
        torch.tensor([0.1, 2.5], dtype=torch.float16),
        torch.tensor([[1, 2, 3]]),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.zeros(()),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0)[2::3],
        torch.nn.Parameter(torch.ones(2)).detach(),
    ],
)
def test_small_tensors_come_back_to_the_bit(value):
    assert same(value, again(value))


def test_complex_tensors_come_back():
    value = torch.tensor([0.5 - 0.25j, 2.0 + 1.0j], dtype=torch.complex128)
    assert torch.equal(value, again(value))


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(30, 20, dtype=torch.float64),
        torch.rand(30, 20) * 4 + 2,
        torch.rand(30, 20).to(torch.bfloat16) * 1e-6,
        torch.randn(40, 30).t(),
        torch.rand(40, 1).expand(40, 30),
        torch.randn(5, 4, 3, dtype=torch.complex64),
        torch.randint(3, 9, (40,)),
        torch.randint(3, 9, (40,)).sort().values,
        torch.randint(0, 200, (5, 40), dtype=torch.uint8),
        torch.rand(50) > 0.4,
        torch.full((50,), math.inf),
        torch.full((5, 10), -0.1, dtype=torch.float64),
        (torch.rand(64) + 0.5).to(torch.float8_e4m3fn),
    ],
)
def test_large_tensors_are_drawn_alike(value):
    made = again(value)
    assert (made.dtype, made.shape, made.stride()) == (value.dtype, value.shape, value.stride())
    if value.dtype is torch.bool:
        assert made.any()
        assert not made.all()
    elif not value.is_complex() and value.float().isfinite().all():
        slack = 0.01 * float(value.float().abs().max())
        assert float(made.float().min()) >= float(value.float().min()) - slack
        assert float(made.float().max()) <= float(value.float().max()) + slack
    if not value.dtype.is_floating_point and not value.is_complex() and value.dtype is not torch.bool:
        assert bool((value.diff() >= 0).all()) == bool((made.diff() >= 0).all())


def test_guesses_are_drawn_from_the_range_they_were_guessed_in():
    writer = Writer(drawn=True)
    assert str(writer.value(torch.randn(3, 4))) == "torch.randn(3, 4, dtype=torch.float32, generator=generator)"
    positive = 0.5 + 1.5 * torch.rand(3, 4, dtype=torch.float64)
    assert str(writer.value(positive)).startswith("0.5 + 1.5 * torch.rand(3, 4, ")
    assert str(writer.value(0.1 + 0.8 * torch.rand(3, 4))).startswith("0.1 + 0.8 * torch.rand(3, 4, ")
    assert str(writer.value(torch.tensor([1, 0]))) == "torch.tensor([1, 0], dtype=torch.int64)"
    assert str(writer.value(torch.tensor(-0.5))).startswith("torch.randn((), ")


def local_function():
    return lambda x: x


@pytest.mark.parametrize(
    "value",
    [
        object(),
        local_function(),
        namedtuple("Point", "x y")(1, 2),
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.nn.Linear(2, 2),
        [object()],
    ],
)
def test_what_cannot_be_written_is_refused(value):
    with pytest.raises(UnwritableError):
        Writer().value(value)


def test_names_of_variables():
    assert variable("x", []) == "x"
    assert variable("xs[0]", []) == "xs_0"
    assert variable("x", ["x", "x_"]) == "x__"
    assert variable("torch", []) == "torch_"
    assert variable("generator", []) == "generator_"
    assert variable("lambda", []) == "lambda_"


@pytest.mark.parametrize("size", [1, 3, 5, 7, 11, 16])
@pytest.mark.parametrize("before", ["x = ", "a_rather_long_name_of_a_variable = "])
def test_lines_are_broken_as_formatters_do(size, before, tmp_path):
    values = [
        torch.rand(size, dtype=torch.float64),
        torch.rand(size, dtype=torch.float64).reshape(1, -1).requires_grad_(),
        torch.randn(size * 10, 20, dtype=torch.float64),
        torch.rand(size * 10, 20, dtype=torch.float64) + 1,
        torch.rand(size * 10, 20, dtype=torch.float64).t(),
        torch.rand(size * 10) > 0.3,
        torch.randint(0, 3, (size * 10,)).sort().values,
        (0.1234567,) * size,
        {f"key{i}": (i, [0.123456] * i) for i in range(size)},
        torch.Size([size] * size * 3),
        [[1.5] * size] * size,
    ]
    lines = []
    for value in values:
        lines += statement(before, Writer().value(value), indent=0)
    file = tmp_path / "written.py"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named" in ruff.stderr:
        pytest.skip("ruff is not installed")
    assert ruff.returncode == 0, ruff.stdout
