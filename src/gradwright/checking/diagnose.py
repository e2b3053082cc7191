"""Diagnosis: what kind of mistake explains a wrong Jacobian, in the user's terms.

Hypotheses are tried in order of simplicity; the first that explains every resolved entry to within its bar wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwright.checking import coupling, hypotheses, rearranged
from gradwright.checking.blocks import Block, Diagnosis

Hypothesis = Callable[[Block, Sequence[Block]], Diagnosis | None]

HYPOTHESES: tuple[Hypothesis, ...] = (
    hypotheses.not_a_number,
    hypotheses.random,
    hypotheses.dropped,
    hypotheses.surrogate,
    hypotheses.cotangent_ignored,
    hypotheses.scalar_factor,
    rearranged.conjugate_missing,
    rearranged.imaginary_part_dropped,
    hypotheses.swapped,
    coupling.copied,
    coupling.swapped_cotangents,
    rearranged.permuted,
    rearranged.flipped,
    rearranged.shifted,
    rearranged.misplaced,
    hypotheses.low_precision,
    hypotheses.elementwise_factor,
    hypotheses.inverted_mask,
    coupling.crossing,
    coupling.low_rank,
    coupling.own_output_only,
    hypotheses.region,
    coupling.partial_sum,
)


def diagnose(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Return the simplest hypothesis that explains a wrong block, or None.

    Arguments:
        others: all blocks, for mistakes that mix inputs or outputs.
    """
    if not bool(block.known.any()):
        return None
    for hypothesis in HYPOTHESES:
        found = hypothesis(block, others)
        if found is not None:
            return found
    return None
