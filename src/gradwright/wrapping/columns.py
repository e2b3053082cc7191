"""The columns of a Jacobian from differences: one by one, or by groups that touch different rows.

Columns without a row in common can be moved at once (Curtis, Powell and Reid, IMA J. Appl. Math. 13 (1974) 117). That a
pattern covers the Jacobian is looked at in every sweep, in the rows that no column of a group should move, and once
along a random direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwright.errors import OptionError, RuleError
from gradwright.wrapping.points import Array, Neighbourhood
from gradwright.wrapping.stencils import Stencil

QUIET = 64.0
"""What moves an output by less than so many units of its noise does not move it."""

SUSPECTS = 8
"""How many outputs are looked at one by one where the columns do not explain a change."""

Change = Callable[[Array], Array]
"""Takes the change from the outputs at a moved point: f - f(x), or the imaginary part."""


@dataclass(frozen=True)
class Pattern:
    """Which entries of the Jacobian can differ from zero.

    Arguments:
        rows: the rows of all entries, column after column.
        starts: where each column begins, one more than there are columns.
        groups: columns that have no row in common.
    """

    rows: Array
    starts: Array
    groups: list[Array]

    def entries(self, columns: Array) -> tuple[Array, Array]:
        """Return rows and positions in ``columns`` of the entries of some columns."""
        parts = [self.rows[self.starts[column] : self.starts[column + 1]] for column in columns]
        owners = np.repeat(np.arange(len(columns)), [len(part) for part in parts])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64), owners


def pattern_of(sparsity: Any, hood: Neighbourhood) -> Pattern:
    """Read a pattern: an array, a SciPy sparse matrix, or a function of the shapes of outputs and arguments.

    Raises:
        OptionError: it does not have one row for each output and one column for each variable.
    """
    if callable(sparsity):
        outs = [out.shape for out, real in zip(hood.outputs, hood.differentiable) if real]
        ins = [array.shape for array in hood.arrays]
        sparsity = sparsity(*(each[0] if len(each) == 1 else tuple(each) for each in (outs, ins)))
    shape = (hood.f.size, hood.x.size)
    if tuple(np.shape(sparsity)) != shape:
        raise OptionError(
            f"{hood.caller.function}: sparsity has the shape {tuple(np.shape(sparsity))}; expected {shape}, one row "
            "for each element of the outputs and one column for each element of the differentiable arguments."
        )
    if hasattr(sparsity, "tocoo"):
        entries = sparsity.tocoo()
        given = np.asarray(entries.data) != 0
        rows, owners = np.asarray(entries.row)[given], np.asarray(entries.col)[given]
    else:
        rows, owners = np.nonzero(np.asarray(sparsity))
    order = np.lexsort((rows, owners))
    rows, owners = rows[order].astype(np.int64), owners[order]
    starts = np.searchsorted(owners, np.arange(shape[1] + 1))
    return Pattern(rows, starts, _grouped(rows, starts, shape[0]))


def _grouped(rows: Array, starts: Array, height: int) -> list[Array]:
    """Put each column, the fullest first, into the first group none of whose columns has a row in common with it."""
    counts = np.diff(starts)
    remaining = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    groups = []
    while remaining:
        taken = np.zeros(height, dtype=bool)
        group, left = [], []
        for column in remaining:
            mine = rows[starts[column] : starts[column + 1]]
            if taken[mine].any():
                left.append(column)
            else:
                taken[mine] = True
                group.append(column)
        groups.append(np.sort(np.array(group)))
        remaining = left
    empty = np.flatnonzero(counts == 0)
    return [*groups, empty] if empty.size else groups


@dataclass
class Sweep:
    """One pass over all columns.

    Arguments:
        hood: the function around the point.
        stencil: where each column is evaluated.
        change: what of the outputs at a moved point is the change.
        pattern: of the Jacobian, or None for a full one.
        noise: of each output, for the same changes; only read with a pattern.
    """

    hood: Neighbourhood
    stencil: Stencil
    change: Change
    pattern: Pattern | None
    noise: Callable[[Array], Array]

    def pull(self, cotangent: Array, used: Array, probe: Array | None = None) -> tuple[Array, Array, Array]:
        """Multiply a cotangent with the Jacobian.

        Arguments:
            cotangent: shape (m,).
            used: the outputs that count, shape (m,).
            probe: a direction, shape (n,), to multiply the Jacobian with as well.

        Returns:
            the product, shape (n,); that with the direction; and the sum of its absolute terms, both of shape (m,).
        """
        hood = self.hood
        gradient = np.zeros(hood.x.size, dtype=np.result_type(hood.x.dtype, cotangent.dtype))
        along, size = np.zeros(hood.f.size), np.zeros(hood.f.size)
        groups = None if self.pattern is None else self.pattern.groups
        per_column = len(self.stencil.new)
        for start, stop in hood.chunks(hood.x.size if groups is None else len(groups), per_column):
            chosen = [np.array([k]) if groups is None else groups[k] for k in range(start, stop)]
            points = [hood.moved(group, new[group]) for group in chosen for new in self.stencil.new]
            found = hood.at(points)
            for number, group in enumerate(chosen):
                outs = found[number * per_column : (number + 1) * per_column]
                for k, out in enumerate(outs):
                    hood.require_finite(out, used, lambda group=group, k=k: self._moved(group, k))  # type: ignore[misc]
                with np.errstate(invalid="ignore", over="ignore"):
                    changes = [self.change(out) for out in outs]
                    rows, owners = self._entries(group, changes)
                    terms = [w[group][owners] * c[rows] for w, c in zip(self.stencil.weights, changes)]
                    entries = sum(terms[1:], terms[0])
                    weights = cotangent[rows]
                    # An output that does not count may be nan, as where a mask hides it.
                    products = np.where(weights != 0, weights * entries, 0.0)
                gradient[group] = np.bincount(owners, products, minlength=len(group))
                if probe is not None:
                    along[rows] += entries * probe[group][owners]
                    size[rows] += np.abs(entries * probe[group][owners])
        return gradient, along, size

    def _entries(self, group: Array, changes: list[Array]) -> tuple[Array, Array]:
        """Return rows and owners of the entries of a group; the other rows must not have moved."""
        if self.pattern is None:
            return np.arange(self.hood.f.size), np.zeros(self.hood.f.size, dtype=np.int64)
        rows, owners = self.pattern.entries(group)
        for change in changes:
            moved = np.abs(change) > QUIET * self.noise(change)
            moved[rows] = False
            if moved.any():
                self._uncovered(int(np.flatnonzero(moved)[0]), " or ".join(map(self.hood.variable, group[:3])))
        return rows, owners

    def apart(self, change: Array, along: Array, size: Array, tolerance: float) -> list[int]:
        """Return the outputs whose change along a direction is not what the columns say of it, the worst few first."""
        with np.errstate(invalid="ignore"):
            excess = np.abs(change - along) - tolerance * size - QUIET * self.noise(change)
        worst = np.argsort(-np.nan_to_num(excess, nan=-1.0), kind="stable")[:SUSPECTS]
        return [int(row) for row in worst if excess[row] > 0]

    def outside(self, row: int) -> Array:
        """Return which variables have no entry in a row."""
        assert self.pattern is not None
        columns = np.repeat(np.arange(self.hood.x.size), np.diff(self.pattern.starts))
        return ~np.isin(np.arange(self.hood.x.size), columns[self.pattern.rows == row])

    def require_still(self, change: Array, row: int) -> None:
        """Raise where an output moves with variables that have no entry in its row.

        Raises:
            RuleError: it does, so that the Jacobian has entries outside the pattern.
        """
        if np.abs(change[row]) > QUIET * self.noise(change)[row]:
            self._uncovered(row, "an element of the arguments")

    def _uncovered(self, row: int, what: str) -> None:
        raise RuleError(
            f"{self.hood.caller.function}: {self.hood.output(row)} moves with {what}, where `sparsity` says that it "
            "does not; expected a pattern with every entry of the Jacobian that can differ from zero; complete it, or "
            "leave sparsity away."
        )

    def _moved(self, group: Array, k: int) -> str:
        i = int(group[0])
        more = "" if len(group) == 1 else f" (and {len(group) - 1} more elements moved)"
        return f"{self.hood.variable(i)} = {self.stencil.new[k][i]}, moved from {self.hood.x[i]}{more}"
