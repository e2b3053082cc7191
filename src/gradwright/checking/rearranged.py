"""Hypotheses about where values ended up: permuted, shifted, reversed, or conjugated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import torch
from torch import Tensor

from gradwright.checking.blocks import Block, Diagnosis

MAX_PERMUTED = 6
"""Dimensions of input and output together beyond which permutations are not tried."""
MAX_SHIFT = 2


def permuted(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Dimensions of equal size were exchanged: a transpose, a reduction over the wrong one, or ``w`` for ``w.mT``."""
    shape, ins = _tensor_shape(block)
    if not block.whole or len(shape) > MAX_PERMUTED:
        return None
    if len(shape) == 2 and _moves_only(block):
        return None  # from vector to vector: a matrix that is transposed is another thing
    numeric = block.numeric.reshape(shape)
    for order in sorted(permutations(range(len(shape))), key=lambda order: _reach(order, ins)):
        if order == tuple(range(len(shape))) or any(shape[a] != shape[b] for a, b in enumerate(order)):
            continue
        if block.explains(numeric.permute(order).reshape(block.numeric.shape)):
            return _permutation_diagnosis(block, order, ins)
    return None


def _reach(order: tuple[int, ...], ins: int) -> int:
    """Rank permutations: of the gradient's own dimensions first, then of grad_output's, then across both."""
    moved = [d for d, e in enumerate(order) if d != e]
    return 0 if all(d < ins for d in moved) else 1 if all(d >= ins for d in moved) else 2


def _permutation_diagnosis(block: Block, order: tuple[int, ...], ins: int) -> Diagnosis:
    moved = [d for d, e in enumerate(order) if d != e]
    if _reach(order, ins) == 0:
        if moved == [ins - 2, ins - 1]:
            return Diagnosis(
                "transposed",
                f"the gradient of {block.name} is the transpose of the right one",
                "transpose it: for out = x @ w the gradients are g @ w.mT and x.mT @ g",
            )
        dims = ", ".join(map(str, moved))
        return Diagnosis(
            "permuted",
            f"the dimensions {dims} of the gradient of {block.name} are permuted",
            "apply the inverse permutation of forward's in backward",
        )
    if _reach(order, ins) == 1:
        return Diagnosis(
            "wrong-dimension",
            "grad_output was reduced or indexed along the wrong one of its equal dimensions "
            f"({', '.join(str(d - ins) for d in moved)})",
            "reduce over the dimensions that forward broadcast",
        )
    return Diagnosis(
        "transposed",
        f"a matrix in the gradient of {block.name} is the transpose of the right one (w where w.mT belongs, or the "
        "reverse)",
        "for out = x @ w the gradient of x is g @ w.mT",
    )


def flipped(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The gradient is the right one in reverse order along a dimension."""
    shape, ins = _tensor_shape(block)
    if not block.whole:
        return None
    numeric = block.numeric.reshape(shape)
    for d in range(ins):
        if shape[d] > 2 and block.explains(numeric.flip(d).reshape(block.numeric.shape)):
            return Diagnosis(
                "flipped",
                f"the gradient of {block.name} is in reverse order along dimension {d}",
                "look for a flip that is missing in backward, or one too many",
            )
    return None


def shifted(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The gradient is the right one, one or two places off along a dimension."""
    shape, ins = _tensor_shape(block)
    if not block.whole:
        return None
    numeric = block.numeric.reshape(shape)
    for d in range(ins):
        for step in range(-MAX_SHIFT, MAX_SHIFT + 1):
            if step == 0 or shape[d] <= abs(step) + 1:
                continue
            for prediction in _shifts(numeric, d, step):
                if block.explains(prediction.reshape(block.numeric.shape)):
                    return Diagnosis(
                        "shifted",
                        f"the gradient of {block.name} is off by {abs(step)} along dimension {d}",
                        "look for an off-by-one in an index, a roll, a shift or a pad",
                    )
    return None


def _shifts(numeric: Tensor, d: int, step: int) -> Iterator[Tensor]:
    rolled = numeric.roll(step, d)
    yield rolled
    filled = rolled.clone()
    filled.narrow(d, 0 if step > 0 else filled.shape[d] + step, abs(step)).zero_()
    yield filled


def misplaced(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The right numbers go to other elements of the input: summed over the wrong one of equal dimensions, say."""
    numeric, analytic = block.numeric, block.analytic
    if not block.whole or not bool(block.known.all()) or numeric.shape[0] < 2:
        return None
    gap = (numeric.sum(dim=0) - analytic.sum(dim=0)).abs()
    if not _moves_only(block) or not bool((gap <= block.bar.sum(dim=0) + 1e-8 * numeric.abs().sum(dim=0)).all()):
        return None
    shape = block.case.real_output_shape(block.output)
    index = torch.cartesian_prod(*map(torch.arange, shape)).reshape(numeric.shape[1], len(shape))
    reached = analytic.abs().argmax(dim=0)
    follows = next((d for d in range(len(shape)) if len(shape) > 1 and torch.equal(index[:, d], reached)), None)
    if follows is not None:
        return Diagnosis(
            "wrong-dimension",
            f"grad_output is summed over the wrong dimension: the gradient of {block.name} follows dimension {follows} "
            "of the output",
            f"sum over the dimensions along which forward broadcast {block.name}",
        )
    return Diagnosis(
        "misplaced",
        f"the right numbers go to the wrong elements of {block.name}",
        "look at the index, the permutation or the dimension by which backward puts grad_output back",
    )


def _moves_only(block: Block) -> bool:
    """Tell whether each output depends on one element of the input at most, by both accounts."""
    return all(bool(((t.abs() > block.bar).sum(dim=0) <= 1).all()) for t in (block.numeric, block.analytic))


def conjugate_missing(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """PyTorch's gradient of a holomorphic function multiplies by the conjugate of its derivative."""
    if not block.whole or not block.case.inputs[block.input].tensor.is_complex():
        return None
    flipped = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(block.numeric.shape[0] // 2).unsqueeze(1)
    if not block.case.outputs[block.output].dtype.is_complex:
        return _conjugated(block) if block.explains(block.numeric * flipped) else None
    incoming = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(block.numeric.shape[1] // 2)
    if block.explains(block.numeric * incoming):
        return Diagnosis(
            "conjugate-missing",
            f"the conjugate of grad_output is used in the gradient of {block.name}",
            "multiply grad_output itself by the conjugate of the derivative: g * derivative.conj()",
        )
    if not any(block.explains(block.numeric * sign) for sign in (flipped * incoming, flipped)):
        return None
    return Diagnosis(
        "conjugate-missing",
        f"a conjugate is missing in the gradient of {block.name}",
        "multiply grad_output by the conjugate of the derivative: g * derivative.conj()",
    )


def _conjugated(block: Block) -> Diagnosis:
    return Diagnosis(
        "conjugated",
        f"the gradient of {block.name} is the conjugate of the right one",
        "PyTorch's gradient of a real loss is dL/da + i dL/db for z = a + ib: 2 * g * z for abs(z)**2, not its "
        "conjugate",
    )


def imaginary_part_dropped(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The real part of the gradient is right and the imaginary part is zero."""
    if not block.whole or not block.case.inputs[block.input].tensor.is_complex():
        return None
    prediction = block.numeric.clone()
    prediction[1::2] = 0
    if not block.explains(prediction):
        return None
    return Diagnosis(
        "imaginary-part-dropped",
        f"the imaginary part of the gradient of {block.name} is dropped",
        "look for .real, a cast to a real dtype, or a real buffer in backward",
    )


def _tensor_shape(block: Block) -> tuple[list[int], int]:
    """Return the shape of the Jacobian as (input dimensions, output dimensions), and how many belong to the input."""
    tensor = block.case.inputs[block.input].tensor
    ins = [*tensor.shape, 2] if tensor.is_complex() else list(tensor.shape)
    return [*ins, *block.case.real_output_shape(block.output)], len(ins)
