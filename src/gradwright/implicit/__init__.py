"""Gradients of what is defined by an equation, without differentiating the solver that found it.

- ``root``: ``residual(z, *params) = 0``;
- ``fixed_point``: ``z = f(z, *params)``;
- ``argmin``: the smallest ``objective(z, *params)``, with constraints that are equations;
- ``linear_solve``: ``A z = b``, for a matrix or a function that applies it.

Each has a solver of its own, and is a decorator above any other. ``SolveOptions`` says how the linear system of the
gradient is solved; ``Status`` is what those of ``root``, ``fixed_point`` and ``argmin`` tell with ``has_aux=True``.
"""

from gradwright.implicit.fixed_points import fixed_point as fixed_point
from gradwright.implicit.linear import linear_solve as linear_solve
from gradwright.implicit.minima import argmin as argmin
from gradwright.implicit.options import SolveOptions as SolveOptions
from gradwright.implicit.roots import root as root
from gradwright.implicit.status import Status as Status
