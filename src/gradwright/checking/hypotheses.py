"""Hypotheses about single values: the gradient is NaN, missing, scaled, rounded, or lacks a factor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradwright.checking.blocks import Block, Diagnosis

LOOSE = "if forward iterates or steps to a tolerance, grant what that leaves open with rtol= or atol="
MOSTLY = 0.5
"""Rounding shows in at least this fraction of the entries."""
LEAST_FITTED = 4
"""So many entries must share a constant before it counts as one."""


def not_a_number(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Backward gives NaN or infinity where the derivative is finite."""
    wrong = ~block.analytic.isfinite() & block.known
    if not bool(wrong.any()):
        return None
    value = "NaN" if bool(block.analytic.isnan().any()) else "infinity"
    return Diagnosis(
        "not-a-number",
        f"backward returns {value} where the derivative is finite",
        "look for 0/0, 0 * inf, a logarithm or a root of zero, or an overflow in backward; guard the input of that "
        "operation (not its result) with torch.where",
    )


def random(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Backward draws random numbers, so that its gradient is another one for each random state."""
    if block.case.backward_randomness == "none":
        return None
    return Diagnosis(
        "random",
        "backward draws random numbers, and the gradient moves with them (it was seeded for the check)",
        "draw the numbers in forward, save them and use the saved ones; for stochastic rounding declare surrogate=",
    )


def dropped(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Backward gives nothing for an input that the output moves with."""
    none = block.comparison.none
    if not none and bool((block.analytic[block.known] != 0).any()):
        return None
    got = "None" if none else "zeros"
    return Diagnosis(
        "dropped",
        f"backward returns {got} for {block.name} although the output moves with it",
        f"return its gradient; if {block.name} is a constant by design, pass it without requires_grad while the "
        "differentiable inputs have requires_grad=True, or declare the rule with surrogate=",
    )


def cotangent_ignored(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Backward gives the same for every output: the gradient of their sum."""
    if block.numeric.shape[1] < 2 or not block.explains(
        block.numeric.sum(dim=1, keepdim=True).expand_as(block.numeric)
    ):
        return None
    return Diagnosis(
        "cotangent-ignored",
        "backward gives the gradient of the sum of all outputs, whichever output's gradient comes in: the factor "
        "grad_output is missing",
        "multiply by grad_output, element by element where the function is elementwise",
    )


def surrogate(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The derivative is zero almost everywhere and the rule is not: a surrogate that is not declared."""
    if not bool((block.numeric.abs() <= block.bar)[block.known].all()):
        return None
    diagonal = block.elements == torch.arange(block.analytic.shape[1])
    identity = bool(diagonal.any()) and torch.equal(block.analytic, diagonal.to(torch.float64))
    rule = "the identity (straight-through)" if identity else "not zero"
    example = "lambda x: x" if identity else "the function whose derivative the rule uses"
    return Diagnosis(
        "surrogate",
        f"the true derivative is zero almost everywhere, the rule is {rule}: a straight-through or surrogate gradient "
        "that is not declared",
        f"declare what the rule stands for and it is checked against that: surrogate={example}",
    )


def scalar_factor(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Every entry is off by the same factor."""
    a, n = block.analytic[block.known], block.numeric[block.known]
    if float(n.square().sum()) == 0.0:
        return None
    factor = float((a * n).sum() / n.square().sum())
    if factor == 0.0 or not block.explains(factor * block.numeric):
        return None
    if abs(factor - 1.0) < 1e-6:
        return Diagnosis(
            "low-precision",
            f"every entry is off by a relative {abs(factor - 1.0):.1e}: a constant of the formula has too few digits",
            f"look for a constant or buffer in float32, or one written with too few digits, in forward or backward; "
            f"{LOOSE}",
        )
    if math.isclose(factor, -1.0, rel_tol=1e-6):
        return Diagnosis("wrong-sign", "the sign is wrong: the gradient is exactly minus the right one", "negate it")
    name = _name_factor(block, factor)
    return Diagnosis(
        "scalar-factor",
        f"every entry is off by the factor {factor:.6g}{name}",
        f"divide the gradient of {block.name} by that factor; a sum in place of a mean (or the reverse) and a "
        "forgotten constant of the chain rule are the usual causes",
    )


def _name_factor(block: Block, factor: float) -> str:
    sizes: dict[str, int] = {}
    shape = block.case.inputs[block.input].tensor.shape
    for dim, size in enumerate(shape):
        sizes.setdefault(f"the size of dim {dim} of {block.name}", size)
    sizes[f"the number of elements of {block.name}"] = shape.numel()
    for text, size in sizes.items():
        if size > 2:
            for value, word in ((size, ""), (1 / size, "one over "), (size**0.5, "the square root of ")):
                if math.isclose(factor, value, rel_tol=1e-6):
                    return f", which is {word}{text}"
    return ""


def swapped(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Two inputs of the same shape have each other's gradient."""
    for other in others:
        same_kind = block.whole and other.whole and other.numeric.shape == block.numeric.shape
        if other.input == block.input or other.output != block.output or not same_kind:
            continue
        if block.explains(other.numeric) and other.explains(block.numeric):
            return Diagnosis(
                "swapped-inputs",
                f"the gradients of {block.name} and {other.name} are swapped",
                "backward returns one gradient for each input, in the order of forward's parameters",
            )
    return None


def elementwise_factor(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """A factor is missing, or one too many: an input or the output, perhaps with a constant, once or twice."""
    for name, factor in _factors(block):
        for label, prediction, words, remedy in (
            (
                "missing-factor",
                block.numeric / factor,
                f"the factor {name} is missing",
                f"multiply the gradient by {name}",
            ),
            (
                "extra-factor",
                block.numeric * factor,
                f"there is one factor {name} too many",
                f"divide the gradient by {name}",
            ),
            (
                "missing-factor",
                block.numeric / factor.square(),
                f"the factor {name} is missing twice (divided by it where it is to be multiplied?)",
                f"multiply the gradient by the square of {name}",
            ),
            (
                "extra-factor",
                block.numeric * factor.square(),
                f"there are two factors {name} too many (multiplied by it where it is to be divided?)",
                f"divide the gradient by the square of {name}",
            ),
        ):
            constant = _constant(block, prediction)
            if constant is None:
                continue
            if constant == 1.0:
                return Diagnosis(label, words, remedy)
            also = f", and besides every entry is off by the factor {constant:.6g}"
            return Diagnosis(label, words + also, f"{remedy}, and divide it by {constant:.6g}")
    return None


def _factors(block: Block) -> Iterator[tuple[str, Tensor]]:
    """Give what may be a factor, in words and for each entry: inputs of a fitting shape, and the output."""
    case, m = block.case, block.analytic.shape[1]
    real = not case.inputs[block.input].tensor.is_complex()
    shape, out_shape = case.inputs[block.input].tensor.shape, case.real_output_shape(block.output)
    for k, item in enumerate(case.inputs):
        values, name = case.base[k].to(torch.float64), f"`{item.name}`"
        if case.n[k] == case.n[block.input]:
            yield name, values[block.elements]
        elif real and fits(item.tensor, shape):
            yield name, values.reshape(item.tensor.shape).expand(shape).reshape(-1)[block.elements]
        if real and k != block.input and shape != out_shape and fits(item.tensor, out_shape):
            yield name, values.reshape(item.tensor.shape).expand(out_shape).reshape(1, -1).expand_as(block.analytic)
    if m == case.n[block.input]:
        yield "the output", case.value()[case.output_slice(block.output)][block.elements]


def fits(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Tell whether a real tensor can be broadcast to a shape."""
    if tensor.is_complex() or tensor.ndim > len(shape):
        return False
    return all(a in (1, b) for a, b in zip(reversed(tensor.shape), reversed(list(shape))))


def _constant(block: Block, prediction: Tensor) -> float | None:
    """Return the constant by which a prediction explains the block; one of several entries, as one fits anything."""
    p, a = prediction[block.known], block.analytic[block.known]
    if not bool(p.isfinite().all()) or not bool((p != 0).any()):
        return None
    if block.explains(prediction):
        return 1.0
    constant = float((a * p).sum() / p.square().sum())
    several = int((p != 0).sum()) >= LEAST_FITTED
    return constant if several and constant != 0.0 and block.explains(constant * prediction) else None


def inverted_mask(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """There is gradient exactly where there should be none."""
    moves, given = block.numeric.abs() > block.bar, block.analytic != 0
    own = block.elements == torch.arange(block.analytic.shape[1])
    exclusive = bool((moves ^ given)[own].all()) and not bool((moves | given)[~own].any())
    if not bool(block.known.all()) or not exclusive or not bool(moves.any()) or not bool(given.any()):
        return None
    return Diagnosis(
        "inverted-mask",
        f"the mask is inverted: {block.name} gets gradient where the output does not move with it, and none where it "
        "does",
        "invert the condition that backward masks grad_output with",
    )


def low_precision(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The error looks like rounding to a lower precision."""
    a, n = block.analytic[block.known], block.numeric[block.known]
    sizeable = n.abs() > 1e-3 * n.abs().max()
    if not bool(sizeable.any()):
        return None
    error = ((a - n).abs() / n.abs())[sizeable]
    worst = float(error.max())
    if float((error > worst * 1e-3).to(torch.float64).mean()) < MOSTLY:
        return None  # rounding does not spare most entries
    if not 1e-10 < worst < 2e-2 or float(error.median()) > 0.9 * worst:
        return None  # a constant relative error is a wrong constant, not rounding
    for dtype, unit in (("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        if worst <= 4 * unit:
            return Diagnosis(
                "low-precision",
                f"the error looks like rounding to {dtype} (relative error up to {worst:.1e})",
                f"look for a cast to {dtype}, or a constant or buffer of that dtype, in backward; {LOOSE}",
            )
    return None


def region(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Some elements get no gradient, or a scaled or wrong one, and the others the right one."""
    wrong = block.known & ((block.analytic - block.numeric).abs() > block.bar)
    elements, n = block.elements[wrong].unique(), block.case.n[block.input]
    if len(elements) == n:
        return None
    some, where = f"{len(elements)} of {n} elements of {block.name}", _whereabouts(block, elements)
    if not bool((block.analytic[wrong] != 0).any()):
        return Diagnosis(
            "zero-region",
            f"{some} get no gradient, {where}",
            "look for an off-by-one bound, a block size that does not divide the length, a branch that is missing, or "
            "a write that overwrites instead of accumulating",
        )
    ratio = (block.analytic / block.numeric)[wrong]
    if not bool(block.known.all()):
        return None
    if len(ratio) > 1 and bool((ratio - ratio[0]).abs().max() <= 1e-8 * ratio[0].abs()):
        counted = " (they count twice)" if math.isclose(float(ratio[0]), 2.0, rel_tol=1e-8) else ""
        what = f"are off by the factor {float(ratio[0]):.6g}{counted}"
    else:
        what = "are wrong"
    return Diagnosis(
        "wrong-region",
        f"{some} {what}, {where}; the others are right",
        "look at the branch, the bound or the index that sets these elements apart in backward",
    )


def _whereabouts(block: Block, elements: Tensor) -> str:
    """Say which elements of an input these are: by their index, or by their values where that tells them apart."""
    case, n = block.case, block.case.n[block.input]
    index = list(case.locate_input(block.input, int(elements[0])))
    item = case.inputs[block.input]
    inside = torch.zeros(n, dtype=torch.bool)
    inside[elements] = True
    words = None
    if not item.tensor.is_complex():
        places = inside.reshape(item.tensor.shape)
        for d, first in enumerate(index):
            others = [e for e in range(places.ndim) if e != d]
            along = places.all(dim=tuple(others)) if others else places
            if bool(along[first:].all()) and int(places.sum()) == int(along[first:].sum()) * (n // len(along)):
                return f"from index {index} on"
        words = _values_apart(f"`{item.name}`", case.base[block.input][inside], case.base[block.input][~inside])
    place = f"at index {index}" if len(elements) == 1 else f"the first at index {index}"
    return f"{place} ({words})" if words else place


def _values_apart(name: str, wrong: Tensor, right: Tensor) -> str | None:
    """Say what values set some elements apart from the rest."""
    for sign, words in ((1, "positive"), (-1, "negative")):
        if bool((sign * wrong > 0).all()) and bool((sign * right <= 0).all()):
            return f"all those where {name} is {words}"
    for key, low, high in (
        (name, wrong, right),
        (f"the size of {name}", wrong.abs(), right.abs()),
    ):
        if float(low.min()) > float(high.max()):
            return f"those where {key} is largest ({low.min():.3g} and more; right up to {high.max():.3g})"
        if float(low.max()) < float(high.min()):
            return f"those where {key} is smallest ({low.max():.3g} and less; right from {high.min():.3g} on)"
    return None
