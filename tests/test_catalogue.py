"""Every entry of the catalogue is what it declares: values, gradients edge by edge, in every dtype and transform.

An entry is proved here by being there; its family's own tests hold what is special about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
import gradwright.ste
from gradwright.authoring.catalogue import Example, SurrogateEntry, entries
from gradwright.errors import GradwrightError

PACKAGES = (gradwright.ste,)
ENTRIES = [e for package in PACKAGES for e in entries(package) if isinstance(e, SurrogateEntry)]
SECOND = ("gradient penalty", "nested forward mode", "double backward", "grad of grad", "hessian")
"""Transforms that need a second derivative."""
FORWARD = ("forward mode", "jvp", "jacfwd", "compile of jvp")
"""Transforms that need forward mode, which a rule that is not linear in its cotangent cannot have."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def each(chosen: Callable[[SurrogateEntry], bool] = lambda entry: True) -> pytest.MarkDecorator:
    """Run a test for each entry, or for each that is ``chosen``."""
    return pytest.mark.parametrize("entry", list(filter(chosen, ENTRIES)), ids=lambda entry: entry.name)


IN_EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def leaves_of(example: Example) -> tuple[list[Any], dict[str, Any], list[Tensor]]:
    """Return the arguments with tensors of its own that require a gradient, and these tensors."""
    found: list[Tensor] = []
    given = [value for value in (*example.args, *example.kwargs.values()) if isinstance(value, Tensor)]
    constants = any(value.requires_grad for value in given)

    def own(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or (constants and not value.requires_grad):
            return value
        leaf = value.detach().clone().requires_grad_()
        found.append(leaf)
        return leaf

    args = [own(value) for value in example.args]
    return args, {name: own(value) for name, value in example.kwargs.items()}, found


def in_float64(example: Example) -> Example:
    def cast(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    kwargs = {name: cast(value) for name, value in example.kwargs.items()}
    return Example(tuple(map(cast, example.args)), kwargs, example.note)


def cotangent(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return a cotangent of small numbers, which a detour through a coarser dtype would round or flush to zero."""
    generator = torch.Generator().manual_seed(len(shape))
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (signs * (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)) / 128).to(dtype)


def gradients(
    entry: SurrogateEntry, example: Example, function: Any = None, g: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients of an entry."""
    args, kwargs, leaves = leaves_of(example)
    out = (function or entry.function)(*args, **kwargs)
    g = cotangent(out.shape, out.dtype) if g is None else g
    grads = torch.autograd.grad(out, leaves, g, materialize_grads=True)
    return out.detach(), list(grads)


def declared(entry: SurrogateEntry, example: Example, dtype: torch.dtype) -> list[Tensor]:
    """Return the gradients that an entry declares, in float64."""
    args, kwargs, leaves = leaves_of(in_float64(example))
    out = entry.surrogate(*args, **kwargs)
    g = cotangent(out.shape, dtype).double()
    if entry.cotangent is not None:
        g = entry.cotangent(g, *args, **kwargs).detach()
    return list(torch.autograd.grad(out, leaves, g, materialize_grads=True))


def assert_near(got: Tensor, want: Tensor, dtype: torch.dtype, terms: int, about: str) -> None:
    """Compare two gradients up to the rounding of ``dtype``, and of float32 for sums of many terms."""
    eps = torch.finfo(dtype).eps
    summed = max(torch.finfo(torch.float32).eps if dtype != torch.float64 else eps, 0.0) * terms
    torch.testing.assert_close(
        got.double(), want, rtol=4 * eps + summed, atol=summed, equal_nan=True, msg=lambda text: f"{about}: {text}"
    )


def cases(entry: SurrogateEntry, dtype: torch.dtype) -> Iterator[Example]:
    yield from entry.examples(dtype)


@each()
@IN_EACH_DTYPE
def test_gradients_are_those_declared(entry: SurrogateEntry, dtype: torch.dtype) -> None:
    for example in cases(entry, dtype):
        out, got = gradients(entry, example)
        for grad, want in zip(got, declared(entry, example, dtype)):
            assert grad.dtype == dtype, f"{entry.name}, {example.note}"
            assert_near(grad, want, dtype, out.numel() // max(grad.numel(), 1), f"{entry.name}, {example.note}")


def second_derivatives(function: Any, example: Example) -> list[Tensor]:
    """Return the gradients of a weighted sum of the gradients, for each argument and the cotangent."""
    args, kwargs, leaves = leaves_of(example)
    out = function(*args, **kwargs)
    leaves.append(cotangent(out.shape, out.dtype).requires_grad_())
    grads = torch.autograd.grad(out, leaves[:-1], leaves[-1], create_graph=True, materialize_grads=True)
    total = sum((grad * cotangent(grad.shape, grad.dtype)).sum() for grad in grads)
    if not isinstance(total, Tensor) or not total.requires_grad:  # the gradient is a constant
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(total, leaves, materialize_grads=True))


@each(lambda entry: entry.second_order == "raises")
def test_second_derivatives_that_are_none_raise(entry: SurrogateEntry) -> None:
    def refused(example: Example) -> bool:
        try:
            second_derivatives(entry.function, example)
        except GradwrightError as error:
            return "differentiated again" in str(error)
        return False

    assert any(refused(example) for example in cases(entry, torch.float64))


@each(lambda entry: entry.second_order != "raises")
def test_second_derivatives_are_those_declared(entry: SurrogateEntry) -> None:
    for example in cases(entry, torch.float64):
        got, want = (second_derivatives(function, example) for function in (entry.function, entry.surrogate))
        for a, b in zip(got, want):
            assert_near(a, b, torch.float64, 64, f"{entry.name}, {example.note}")


@each()
@IN_EACH_DTYPE
def test_values_are_those_declared(entry: SurrogateEntry, dtype: torch.dtype) -> None:
    if entry.values is None:
        assert entry.random, f"{entry.name} declares neither values nor what is random about them"
        return
    for example in cases(entry, dtype):
        out = entry.function(*example.args, **example.kwargs)
        exact = in_float64(example)
        want = entry.values(*exact.args, **exact.kwargs)
        assert out.dtype == dtype, f"{entry.name}, {example.note}"
        if entry.codes is not None:
            want = want.to(dtype).double()
        assert_near(out.detach(), want, dtype, int(entry.codes is None), f"{entry.name}, {example.note}")


@each(lambda entry: entry.codes is not None)
@IN_EACH_DTYPE
def test_values_are_codes(entry: SurrogateEntry, dtype: torch.dtype) -> None:
    assert entry.codes is not None
    for example in cases(entry, dtype):
        out = entry.function(*example.args, **example.kwargs).detach()
        exact = in_float64(example)
        codes = entry.codes(*exact.args, **exact.kwargs).to(dtype)
        known = (out.unsqueeze(-1) == codes).any(-1)
        assert bool(known.all()), f"{entry.name}, {example.note}: {out[~known][:3]} are no codes"


@each()
def test_what_is_saved(entry: SurrogateEntry) -> None:
    for example in cases(entry, torch.float32):
        args, kwargs, leaves = leaves_of(example)
        given = {leaf.untyped_storage().data_ptr() for leaf in leaves}
        extra: dict[int, int] = {}

        def keep(tensor: Tensor, given: set[int] = given, extra: dict[int, int] = extra) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in given:
                extra[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = entry.function(*args, **kwargs)
        parameters = sum(8 for value in (*args, *kwargs.values()) if isinstance(value, (Tensor, float, int)))
        allowed = entry.saved * out.numel() + parameters
        assert sum(extra.values()) <= allowed, f"{entry.name}, {example.note}: {sum(extra.values())} bytes"


def compiled(entry: SurrogateEntry) -> Any:
    torch.compiler.reset()
    return torch.compile(entry.function, fullgraph=True, dynamic=False)


@each(lambda entry: not entry.random)  # compiled code draws other random numbers
@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_has_the_same_gradients_at_every_edge(entry: SurrogateEntry) -> None:
    for example in cases(entry, torch.float32):
        out, want = gradients(entry, example)
        fast_out, got = gradients(entry, example, compiled(entry))
        assert_near(fast_out, out.double(), torch.float32, int(entry.codes is None), f"{entry.name}, {example.note}")
        for a, b in zip(got, want):
            terms = out.numel() // max(a.numel(), 1)
            assert_near(a, b.double(), torch.float32, terms, f"{entry.name}, {example.note}")


def faults(entry: SurrogateEntry, example: Example, level: str) -> Sequence[str]:
    """Return what a check finds against an entry, what it cannot tell, and what is refused that need not be."""
    report = gw.check(entry.function, *example.args, kwargs=dict(example.kwargs), level=level, seed=0)  # type: ignore[arg-type]
    # The points of an example lie on the edges, where a first derivative jumps and a second cannot be measured.
    rough = ["gradient-penalty", "nested-forward", "second-order"]
    if entry.random:  # compiled code draws other numbers
        rough += ["compile", "export"]
    bad = [
        r
        for r in report.results
        if r.verdict in ("fail", "suspect") or (r.verdict == "unresolved" and r.id not in rough)
    ]
    allowed = (
        "export",
        "export (strict)",
        *(SECOND if entry.second_order == "raises" else ()),
        *(() if entry.linear else FORWARD),
        *(("batched gradients",) if entry.random else ()),  # PyTorch draws no random numbers there
    )
    refused = [s for s in report.support if s.verdict == "unsupported" and s.transform not in allowed]
    return [f"{r.id}: {r.verdict}: {r.message}" for r in bad] + [f"{s.transform}: {s.reason}" for s in refused]


@each()
def test_a_quick_check_finds_nothing(entry: SurrogateEntry) -> None:
    example = entry.examples(torch.float64)[0]
    assert not faults(entry, example, "quick")


@each()
@pytest.mark.slow
@pytest.mark.compile
def test_a_full_check_finds_nothing(entry: SurrogateEntry) -> None:
    for example in cases(entry, torch.float64):
        found = faults(entry, example, "full")
        assert not found, f"{entry.name}, {example.note}: {found}"


@each(lambda entry: not entry.linear)
def test_a_rule_that_is_declared_not_linear_is_not(entry: SurrogateEntry) -> None:
    """A check takes the declaration for granted and examines what it can; a plain function has none."""
    example = entry.examples(torch.float64)[0]
    only = ("linear-in-cotangent", "matches-surrogate", "func-transforms")

    def undeclared(*args: Any, **kwargs: Any) -> Any:
        return entry.function(*args, **kwargs)

    verdicts = []
    for function in (entry.function, undeclared):
        report = gw.check(function, *example.args, kwargs=dict(example.kwargs), only=only, seed=0)
        verdicts.append({r.id: r.verdict for r in report.results})
    assert verdicts[0] == dict.fromkeys(only, "skipped")
    assert verdicts[1]["linear-in-cotangent"] == "fail"


@each(lambda entry: not entry.linear)  # of the others the contract func-transforms is proof
def test_a_rule_that_is_not_linear_has_its_gradients_under_transforms(entry: SurrogateEntry) -> None:
    example = entry.examples(torch.float64)[0]
    x, *rest = example.args
    batch = torch.stack([x, x.flip(0), x])

    def pulled(x: Tensor, g: Tensor) -> Tensor:
        _, pull = torch.func.vjp(lambda x: entry.function(x, *rest, **example.kwargs), x)
        return pull(g)[0]

    g = cotangent(batch.shape, torch.float64)
    each = [gradients(entry, Example((x, *rest), example.kwargs), g=g)[1][0] for x, g in zip(batch, g)]
    assert torch.equal(torch.func.vmap(pulled)(batch, g).nan_to_num(7.0), torch.stack(each).nan_to_num(7.0))


def test_names_are_unique() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names))


@each()
def test_declarations_are_complete(entry: SurrogateEntry) -> None:
    package = getattr(gw, entry.name.split(".")[0])
    assert getattr(package, entry.name.split(".")[1]) is entry.function, "users find it under its name"
    assert entry.summary.endswith("."), "its docstring starts with a sentence"
    assert entry.paper
    assert entry.gradient
    arguments = [a.name for a in entry.function.__custom_gradient__.arguments]
    assert set(entry.gradient) <= set(arguments)
