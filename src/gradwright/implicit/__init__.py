"""Gradients of what is defined by an equation, without differentiating the solver that found it."""

from gradwright.implicit.fixed_points import fixed_point as fixed_point
from gradwright.implicit.linear import linear_solve as linear_solve
from gradwright.implicit.minima import argmin as argmin
from gradwright.implicit.options import SolveOptions as SolveOptions
from gradwright.implicit.roots import root as root
from gradwright.implicit.status import Status as Status
