"""What annotations say of the inputs is followed: axes and dtypes of jaxtyping, enumerations, literals, aliases."""

# ruff: noqa: F722, F821
# Axes are no names in Python.

import enum
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.axes import Sizes, array_type, bind, bindings
from gradwright.checking.case import Case
from gradwright.checking.subject import as_subject
from gradwright.checking.synthesis import synthesise

jaxtyping = pytest.importorskip("jaxtyping", reason="needs Python 3.11")
from jaxtyping import (  # noqa: E402
    BFloat16,
    Bool,
    Complex,
    Float,
    Float32,
    Inexact,
    Int,
    Key,
    Num,
    Shaped,
    UInt8,
)


def make(forward, backward=lambda ctx, g: g):
    return type("F", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def found(forward, backward=lambda ctx, g: g):
    subject = as_subject(make(forward, backward))
    result = synthesise(subject)
    assert result.reason is None, result.reason
    for sample in result.samples:
        Case(subject, sample)
    return result


def shapes(sample):
    return [tuple(a.shape) if isinstance(a, Tensor) else a for a in sample.args]


def first(annotation, backward=lambda ctx, g: g):
    def forward(ctx, x):
        return x * 1.5

    forward.__annotations__["x"] = annotation
    return found(forward, backward).samples[0]


# ---------------------------------------------------------------- axes


def test_named_axes_are_bound_once_for_all_arrays():
    def forward(ctx, x: Float[Tensor, "batch dim"], w: Float[Tensor, "dim out"], b: Float[Tensor, " out"]):
        assert x.shape[1] == w.shape[0]
        assert b.shape == w.shape[1:]
        return x @ w + b

    result = found(forward, lambda ctx, g: (g @ torch.ones(2, 4).double(), torch.ones(4, 2).double(), g.sum(0)))
    assert "these were found at try 1" in result.notes[0]
    assert shapes(result.samples[0]) == [(3, 4), (4, 2), (2,)]
    assert result.samples[0].provenance == "typed"


def test_the_second_sample_has_other_sizes():
    result = found(lambda ctx, x: x * 2.0)
    assert len(result.samples) == 2

    def forward(ctx, x: Float[Tensor, "batch dim"]):
        return x * 2.0

    assert [shapes(s) for s in found(forward).samples] == [[(3, 4)], [(2, 5)]]


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ("", ()),
        ("a b", (3, 4)),
        ("a a", (3, 3)),
        ("3 a 7", (3, 3, 7)),
        ("a a+1 2*a-1 a//2 a**2", (3, 4, 5, 1, 9)),
        ("b-1 b", (2, 3)),
        ("_ a _other", (4, 3, 2)),
        ("rows=2 a", (2, 3)),
        ("?a b", (3, 4)),
        ("*batch a", (2, 3)),
        ("... a", (2, 3)),
        ("*_ a", (2, 3)),
        ("#a b", (3, 4)),
        ("*#batch #a 1", (2, 3, 1)),
    ],
)
def test_every_kind_of_axis(axes, shape):
    array = array_type(Float[Tensor, axes])
    assert bind([array], Sizes((3, 4, 2), (2,))) == (shape,)
    assert array == array_type(f'Float[torch.Tensor, "{axes}"]'), "the same where it is only text"


def test_axes_that_may_be_one_are_that_too():
    arrays = [array_type(Float[Tensor, "*#batch #n d"]), array_type(Float[Tensor, "*#batch n #d"])]
    assert next(bindings(arrays))[1] == ((2, 3, 4), (2, 3, 4))
    assert ((1, 4), (3, 1)) in [shapes for _, shapes in bindings(arrays)]


def test_a_sum_that_comes_out_negative_is_not_tried():
    array = array_type(Float[Tensor, "n n-4"])
    assert all(size >= 0 for _, (shape,) in bindings([array]) for size in shape)
    assert shapes(first(Float[Tensor, "n n-4"])) == [(4, 0)] or first(Float[Tensor, "n n-4"]).args[0].dim() == 2


def test_sizes_are_tried_until_forward_runs():
    def forward(ctx, x: Float[Tensor, "n d"]):
        return x.view(x.shape[0], x.shape[1] // 2, 2).sum(-1) * (1 if x.shape[1] % 8 == 0 else x.shape[5])

    sample = found(forward, lambda ctx, g: g.repeat_interleave(2, 1)).samples[0]
    assert shapes(sample) == [(4, 8)]
    assert sample.provenance == "typed"


def test_what_cannot_be_bound_is_a_tensor():
    size = 3
    assert array_type(Float[Tensor, "{size} a"]) is None
    assert array_type(Float[Tensor, "a.shape[0]"]) is None
    assert shapes(first(Float[Tensor, "{size} a"])) == [(3, 4)]
    assert size == 3


def test_arrays_beside_plain_tensors():
    def forward(ctx, x: Float[Tensor, "n d"], bias: Tensor):
        return x + bias

    assert shapes(found(forward, lambda ctx, g: (g, g)).samples[0])[0] == (3, 4)


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    ("annotation", "dtype"),
    [
        (Float[Tensor, "a"], torch.float64),
        (Float32[Tensor, "a"], torch.float32),
        (BFloat16[Tensor, "a"], torch.bfloat16),
        (Complex[Tensor, "a"], torch.complex128),
        (Inexact[Tensor, "a"], torch.float64),
        (Num[Tensor, "a"], torch.float64),
        (Shaped[Tensor, "a"], torch.float64),
        (Int[Tensor, "a"], torch.int64),
        (UInt8[Tensor, "a"], torch.uint8),
        (Bool[Tensor, "a"], torch.bool),
    ],
)
def test_dtypes(annotation, dtype):
    array = array_type(annotation)
    assert array.dtype(torch.float64) is dtype
    kind = str(annotation.__name__).partition("[")[0]
    written = array_type(f"{kind}[Tensor, 'a']")
    assert written.dtype(torch.float64) is dtype
    assert written.family == array.family
    if dtype.is_floating_point or dtype.is_complex:
        sample = first(annotation)
        assert sample.args[0].dtype is dtype
        assert sample.provenance == "typed"


def test_float32_by_annotation_is_not_called_a_choice_of_forward():
    def forward(ctx, x: Float32[Tensor, "a b"]):
        return x * 2.0

    result = found(forward)
    assert result.samples[0].args[0].dtype is torch.float32
    assert not any("float32" in note for note in result.notes)


def test_indices_and_masks_have_their_own_axes():
    def forward(
        ctx, x: Float[Tensor, "n d"], at: Int[Tensor, " k"], keep: Bool[Tensor, "k d"], last: UInt8[Tensor, ""]
    ):
        assert keep.dtype is torch.bool
        assert last.dtype is torch.uint8
        ctx.at, ctx.rows = at, x.shape[0]
        ctx.save_for_backward(keep)
        return torch.where(keep, x[at], 0.0)

    def backward(ctx, g):
        (keep,) = ctx.saved_tensors
        return g.new_zeros(ctx.rows, g.shape[1]).index_add(0, ctx.at, g * keep), None, None, None

    for sample in found(forward, backward).samples:
        x, at, keep, last = sample.args
        assert keep.shape == (at.shape[0], x.shape[1])
        assert last.shape == ()
        assert int(at.max()) < x.shape[0]
        assert sample.provenance == "typed"


def test_what_is_no_number_is_not_guessed():
    def forward(ctx, x, key: Key[Tensor, ""]):
        return x

    assert array_type(Key[Tensor, ""]) is None
    subject = as_subject(make(forward))
    assert synthesise(subject).samples  # as an ordinary tensor, since the dtype is none of torch's


# ---------------------------------------------------------------- other types


def test_optional_arrays_are_passed_in_the_second_sample():
    def forward(ctx, x: Float[Tensor, "n d"], bias: Optional[Float[Tensor, " d"]] = None):  # noqa: UP045
        ctx.biased = bias is not None
        return x * 2.0 if bias is None else x * 2.0 + bias

    samples = found(forward, lambda ctx, g: (g * 2, g.sum(0) if ctx.biased else None)).samples
    assert [shapes(s) for s in samples] == [[(3, 4)], [(3, 4), (4,)]]
    assert {s.provenance for s in samples} == {"typed"}


def test_lists_of_arrays():
    def forward(ctx, x: Float[Tensor, " d"], others: tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]):
        return x + others[0].sum(0) + others[1].sum(0)

    sample = found(forward, lambda ctx, g: (g, None)).samples[0]
    assert [tuple(t.shape) for t in sample.args[1]] == [(4, 3), (4, 3)]


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Bits(enum.IntEnum):
    FOUR = 4


Scale = NewType("Scale", float)
Rows = NewType("Rows", Float[Tensor, "n d"])


def test_enumerations_aliases_and_literals():
    def forward(
        ctx,
        x: Rows,
        mode: Mode,
        bits: Bits,
        scale: Scale,
        flag: bool,
        sizes: tuple[int, int],
        word: Literal["a", "b"],
        much: Annotated[Float[Tensor, " d"], "per column"],
        k: int = 7,
    ):
        assert mode is Mode.SUM
        assert bits is Bits.FOUR
        assert type(scale) is float
        assert flag is True
        assert word == "a"
        assert all(type(size) is int for size in sizes)
        return x * much

    def backward(ctx, g):
        return g, None, None, None, None, None, None, g.sum(0), None

    sample = found(forward, backward).samples[0]
    assert sample.provenance == "typed"
    assert len(sample.args) == 8
    assert shapes(sample)[0] == (3, 4)
    assert tuple(sample.args[7].shape) == (4,)


def test_one_parameter_without_an_annotation_makes_it_a_guess():
    def forward(ctx, x: Float[Tensor, "n d"], k):
        return x * k

    assert found(forward, lambda ctx, g: (g, None)).samples[0].provenance == "synthesised"


def test_an_annotation_that_is_wrong_does_not_end_the_search():
    def forward(ctx, x: Int[Tensor, "n d"]):
        if not x.is_floating_point():
            raise TypeError("floating point only")
        return x * 2

    sample = found(forward).samples[0]
    assert sample.args[0].is_floating_point()
    assert sample.provenance == "synthesised"


def test_the_remedy_is_python_that_declares_such_inputs():
    def forward(
        ctx,
        x: Float[Tensor, "n d"],
        at: UInt8[Tensor, " k"],
        keep: Bool[Tensor, "n"],
        like: Complex[Tensor, ""],
        mode: Mode,
        device: torch.device,
    ):
        return x * 2

    remedy = synthesise(as_subject(make(forward, lambda ctx, g: (g, None, None, None, None, None)))).remedy
    scope: dict[str, Any] = {"torch": torch, "Mode": Mode}
    exec(remedy, scope)
    x, at, keep, like, mode, device = scope["gradwright_samples"]["F"]
    assert (mode, device) == (Mode.SUM, torch.device("cpu"))
    assert (x.shape, at.shape, at.dtype, keep.shape, like.dtype) == ((3, 4), (2,), torch.uint8, (3,), torch.complex128)


def test_a_check_without_samples_is_a_typed_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Product(Function):
        @staticmethod
        def forward(ctx, x: Float[Tensor, "*batch n d"], w: Float[Tensor, "d out"]):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.mT, x.flatten(0, -2).mT @ g.flatten(0, -2)

    sample = synthesise(as_subject(Product)).samples[0]
    assert sample.provenance == "typed"
    assert shapes(sample) == [(2, 3, 4), (4, 2)]
    assert gw.check(Product, *sample.args, level="quick")
