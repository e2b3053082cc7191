"""Hypotheses about single values: the gradient is NaN, missing, scaled, rounded, or lacks a factor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gradwright.checking.blocks import Block, Diagnosis

LOOSE = "if forward iterates or steps to a tolerance, grant what that leaves open with rtol= or atol="


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
        if other.input == block.input or not same_kind:
            continue
        if block.explains(other.numeric) and other.explains(block.numeric):
            return Diagnosis(
                "swapped-inputs",
                f"the gradients of {block.name} and {other.name} are swapped",
                "backward returns one gradient for each input, in the order of forward's parameters",
            )
    return None


def elementwise_factor(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """A factor is missing, or one too many: an input or the output."""
    case = block.case
    n, m = case.n[block.input], block.analytic.shape[1]
    candidates = [(f"`{i.name}`", case.base[k].to(torch.float64)) for k, i in enumerate(case.inputs) if case.n[k] == n]
    if m == n:
        candidates.append(("the output", case.value()[case.output_slice(block.output)]))
    for name, values in candidates:
        factor = values[block.elements]
        if block.explains(block.numeric / factor):
            return Diagnosis("missing-factor", f"the factor {name} is missing", f"multiply the gradient by {name}")
        if block.explains(block.numeric * factor):
            return Diagnosis("extra-factor", f"there is one factor {name} too many", f"divide the gradient by {name}")
    return None


def low_precision(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The error looks like rounding to a lower precision."""
    a, n = block.analytic[block.known], block.numeric[block.known]
    sizeable = n.abs() > 1e-3 * n.abs().max()
    if not bool(sizeable.any()):
        return None
    error = ((a - n).abs() / n.abs())[sizeable]
    worst = float(error.max())
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
    """Some elements get no gradient and the others the right one."""
    wrong = block.known & ((block.analytic - block.numeric).abs() > block.bar)
    elements = block.elements[wrong].unique()
    n = block.case.n[block.input]
    if bool((block.analytic[wrong] != 0).any()) or len(elements) == n:
        return None
    index = list(block.case.locate_input(block.input, int(elements[0])))
    return Diagnosis(
        "zero-region",
        f"{len(elements)} of {n} elements of {block.name} get no gradient, from index {index} on",
        "look for an off-by-one bound, a block size that does not divide the length, or a write that overwrites "
        "instead of accumulating",
    )
