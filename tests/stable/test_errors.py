"""What functions refuse: each says which argument of which function was what, before anything else goes wrong."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
import gradwright.stable
from gradwright.authoring.catalogue import entries
from gradwright.authoring.exact import ExactEntry
from gradwright.errors import ArgumentError, DefinitionError, OptionError, kind_of
from gradwright.stable.arguments import not_a_tensor, require_dim, require_floating, require_number

ENTRIES = [e for e in entries(gw.stable) if isinstance(e, ExactEntry)]
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name.rpartition(".")[2])
TAKES_NUMBERS = {("scatter", "src"), ("slerp", "t"), ("xlogy", "x"), ("xlogy", "y")}
TAKES_INTEGERS = {"angle", "masked", "masked_mean", "masked_sum", "where"}
"""As the functions of PyTorch do; masked ones pass on what they are given."""

X = torch.tensor([[0.5, 0.25], [1.0, 0.75]])
MASK = X > 0.5
EYE = torch.eye(2)


def tensors_of(entry: ExactEntry) -> dict[str, int]:
    """Return the names and places of the arguments that are tensors in the first example."""
    names = list(inspect.signature(entry.function).parameters)
    return {names[i]: i for i, value in enumerate(entry.examples(torch.float64)[0].args) if isinstance(value, Tensor)}


def refused(entry: ExactEntry, argument: str, value: object) -> str:
    """Return what is said of a value in the place of a tensor."""
    point = entry.examples(torch.float64)[0]
    args = list(point.args)
    args[tensors_of(entry)[argument]] = value
    with pytest.raises(ArgumentError) as caught:
        entry.function(*args, **point.kwargs)
    return str(caught.value)


@EACH
@pytest.mark.parametrize("value", [[1.0, 2.0], 0.5, 2, None], ids=lambda value: type(value).__name__)
def test_what_is_no_tensor_is_named(entry: ExactEntry, value: object) -> None:
    name = entry.name.rpartition(".")[2]
    for argument in tensors_of(entry):
        if (name, argument) in TAKES_NUMBERS and isinstance(value, (int, float)):
            continue
        message = refused(entry, argument, value)
        assert re.match(rf"{name}: '?{argument}'? is {kind_of(value)}\b", message), message


@EACH
def test_tensors_of_integers_are_refused(entry: ExactEntry) -> None:
    name, argument = entry.name.rpartition(".")[2], next(iter(tensors_of(entry)))
    if name in TAKES_INTEGERS:
        return
    given = entry.examples(torch.float64)[0].args[tensors_of(entry)[argument]]
    message = refused(entry, argument, torch.ones_like(given).real.to(torch.int64))
    assert re.match(rf"{name}: .*\b{argument} .*torch\.int64", message), message


@EACH
def test_half_types_are_declared_where_they_are_taken(entry: ExactEntry) -> None:
    """What an entry has no bars for it refuses by itself; LAPACK would say that something is not implemented."""
    for dtype in entry.bars:
        point = entry.examples(dtype)[0]
        entry.function(*point.args, **point.kwargs)
    if torch.float16 in entry.bars or entry.name == "stable.angle":  # which also has numbers of two float16
        return
    point = entry.examples(torch.float32)[0]
    args = [value.to(torch.float16) if isinstance(value, Tensor) else value for value in point.args]
    with pytest.raises(ArgumentError, match=r": \w+ (is|has dtype) torch\.float16"):
        entry.function(*args, **point.kwargs)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: gw.stable.softmax(X, MASK), ArgumentError, "softmax: dim is a Tensor; expected an int; pass mask= by"),
        (lambda: gw.stable.log_softmax(X, MASK), ArgumentError, "log_softmax: dim is a Tensor; .*; pass mask= by"),
        (lambda: gw.stable.softmax(X, 1, [True, False]), ArgumentError, "softmax: mask is a list; expected a boolean"),
        (lambda: gw.stable.entropy(X, None), ArgumentError, "entropy: dim is None; expected an int;"),
        (lambda: gw.stable.kl_divergence(X, X, "x"), ArgumentError, "kl_divergence: dim is a str"),
        (lambda: gw.stable.js_divergence(X, X, 1.0), ArgumentError, "js_divergence: dim is a float"),
        (lambda: gw.stable.angle_between(X, X, None), ArgumentError, "angle_between: dim is None"),
        (lambda: gw.stable.norm(X, 2.0, X), ArgumentError, "norm: dim is a Tensor; .*a tuple of them, or None"),
        (lambda: gw.stable.norm(X, X), ArgumentError, r"norm: ord is a Tensor; expected a number, .*; write ord\.item"),
        (lambda: gw.stable.normalize(X, "x"), ArgumentError, "normalize: dim is a str"),
        (lambda: gw.stable.weight_norm(X, X[:, :1], (0, 1)), ArgumentError, "weight_norm: dim is a tuple; .* or None"),
        (lambda: gw.stable.cosine_similarity(X, X, X), ArgumentError, "cosine_similarity: dim is a Tensor"),
        (lambda: gw.stable.pairwise_distance(X, X, "2"), ArgumentError, "pairwise_distance: p is a str"),
        (lambda: gw.stable.cdist(X, X, None), ArgumentError, "cdist: p is None; expected a number"),
        (lambda: gw.stable.pdist(X, [2]), ArgumentError, "pdist: p is a list"),
        (lambda: gw.stable.logsumexp(X, (0, 0.5)), ArgumentError, "logsumexp: dim is a float; .*, or a tuple of them;"),
        (lambda: gw.stable.logcumsumexp(X, X), ArgumentError, "logcumsumexp: dim is a Tensor"),
        (lambda: gw.stable.prod(X, "x"), ArgumentError, "prod: dim is a str; expected an int, or None"),
        (lambda: gw.stable.cumprod(X, None), ArgumentError, "cumprod: dim is None"),
        (lambda: gw.stable.var(X, X), ArgumentError, "var: dim is a Tensor"),
        (lambda: gw.stable.std(X, correction=X), ArgumentError, "std: correction is a Tensor"),
        (lambda: gw.stable.var(X, correction=None), ArgumentError, "var: correction is None"),
        (lambda: gw.stable.std(X, "x"), ArgumentError, "std: dim is a str"),
        (lambda: gw.stable.softplus(X, X), ArgumentError, "softplus: beta is a Tensor"),
        (lambda: gw.stable.logit(X, "x"), ArgumentError, "logit: eps is a str"),
        (lambda: gw.stable.scatter(X, X, MASK, X), ArgumentError, "scatter: dim is a Tensor"),
        (lambda: gw.stable.scatter(X, 0, MASK.long(), X.numpy()), ArgumentError, "scatter: src is a ndarray"),
        (lambda: gw.stable.index_copy(X, None, MASK[0].long(), X), ArgumentError, "index_copy: dim is None"),
        (lambda: gw.stable.slerp(torch.eye(4)[0], torch.eye(4)[1], "x"), ArgumentError, "slerp: t is a str"),
        (lambda: gw.stable.cross_entropy(X, 2), ArgumentError, "cross_entropy: target is an int; expected a tensor of"),
        (lambda: gw.stable.cross_entropy(X, X, 2.0), ArgumentError, "cross_entropy: weight is a float"),
        (
            lambda: gw.stable.cross_entropy(X, X, label_smoothing="x"),
            ArgumentError,
            "cross_entropy: label_smoothing is a str",
        ),
        (lambda: gw.stable.bce_with_logits(X, X, [1.0]), ArgumentError, "bce_with_logits: weight is a list"),
        (lambda: gw.stable.bce_with_logits(X, X, pos_weight=3), ArgumentError, "bce_with_logits: pos_weight is an int"),
        (lambda: gw.stable.kabsch(X, X, [1.0, 1.0]), ArgumentError, "kabsch: weights is a list"),
        (lambda: gw.stable.logaddexp(X, 1.0), ArgumentError, "logaddexp: 'y' is a float, .* if the function is yours"),
        (lambda: gw.stable.log_ndtr_between(X, 1.0), ArgumentError, r"log_ndtr_between: high is a float"),
        (lambda: gw.stable.xlogy(2.0, 3.0), ArgumentError, "xlogy: x is a float"),
        (lambda: gw.stable.matrix_function(EYE, X), ArgumentError, "matrix_function: f is a Tensor"),
        (lambda: gw.stable.matrix_function(EYE, torch.exp, 1.0), ArgumentError, "divided_difference is a float"),
        (lambda: gw.stable.matrix_function(EYE, torch.exp, derivative=X), ArgumentError, "derivative is a Tensor"),
        (lambda: gw.stable.gelu(X, approximate="tan"), OptionError, "gelu: approximate: got 'tan'.* mean 'tanh'"),
        (lambda: gw.stable.masked(X.log(), MASK, X), ArgumentError, r"masked: f is a Tensor; .*, not torch\.log\(x\)"),
        (lambda: gw.stable.masked_sum(torch.log, [True], X), ArgumentError, "masked_sum: mask is a list"),
        (lambda: gw.stable.where(MASK, X.log(), X), ArgumentError, r"where: f is a Tensor .*, not torch\.log\(x\)"),
        (lambda: gw.stable.where(MASK, torch.log, 0.0), ArgumentError, "where: x is None, and none of the arguments"),
        (
            lambda: gw.stable.masked(torch.log, MASK, X, fil=1.0),
            ArgumentError,
            r"masked: log was given fil by keyword and raised TypeError: .* fill, safe\. Did you mean 'fill'\?",
        ),
        (
            lambda: gw.stable.masked_mean(torch.log, MASK, X, keepdims=True),
            ArgumentError,
            r"masked_mean: log was given keepdims .* Did you mean 'keepdim'\?",
        ),
        (lambda: gw.stable.where(MASK, torch.log, 0.0, X, fill=1.0), ArgumentError, "where: log was given fill by"),
        (lambda: gw.stable.quotient(torch.sin, 1), DefinitionError, "quotient: numerator is a builtin_func"),
        (lambda: gw.stable.removable(torch.sin, abs, name="f"), DefinitionError, "removable: closed is a builtin_func"),
        (
            lambda: gw.stable.removable((torch.sin,) * 4, [1.0, 0.5], name="f"),
            DefinitionError,
            "removable: coefficient is a list; expected a function of n",
        ),
    ],
)
def test_every_error_names_function_and_argument(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_a_number_beside_a_tensor_is_what_it_is_to_pytorch() -> None:
    y = torch.tensor([0.5, 3.0], dtype=torch.bfloat16, requires_grad=True)
    for ours, theirs in (
        (gw.stable.xlogy(2.0, y), torch.xlogy(2.0, y)),
        (gw.stable.xlogy(y, 2), torch.xlogy(y, 2)),
    ):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), y), torch.autograd.grad(theirs.sum(), y))


def test_keywords_that_a_function_takes_are_passed_on() -> None:
    def power(x: Tensor, *, exponent: float) -> Tensor:
        return x**exponent

    assert gw.stable.masked(power, MASK, X, exponent=2.0).tolist() == [[0.0, 0.0], [1.0, 0.5625]]


def test_numbers_of_other_libraries_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    require_dim("f", numpy.int64(1))
    require_number("f", p=numpy.float32(2.0))
    assert gw.stable.norm(X, numpy.float32(2.0), numpy.int64(1)).tolist() == gw.stable.norm(X, 2.0, 1).tolist()
    with pytest.raises(ArgumentError, match="f: p is a ndarray"):
        require_number("f", p=numpy.ones(1))
    with pytest.raises(ArgumentError, match="f: dim is a ndarray"):
        require_dim("f", numpy.ones(1))


def test_what_is_said_of_a_value() -> None:
    with pytest.raises(ArgumentError, match=r"^f: x is an int; expected a floating-point tensor; write torch\.tensor"):
        require_floating("f", x=3)  # type: ignore[arg-type]
    assert str(not_a_tensor("f", "x", None, "a tensor")).startswith("f: x is None; expected a tensor; write")


def test_names_that_are_nearly_right_are_guessed() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'sqrm'\. Did you mean 'sqrtm'\?") as caught:
        gw.stable.sqrm  # noqa: B018
    assert caught.value.name == "sqrm"
    assert not hasattr(gw.stable, "__wrapped__")
