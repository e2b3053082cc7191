"""Gradients of what is defined by an equation, without differentiating the solver that found it."""

from gradwright.implicit.linear_solve import linear_solve as linear_solve
from gradwright.implicit.options import SolveOptions as SolveOptions
