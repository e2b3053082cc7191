"""Code that autograd cannot see as differentiable functions: NumPy, SciPy, C, C++, Fortran, JAX, executables.

``gw.external`` is a function, so that the package cannot have its name. Nothing is imported here: what runs in a worker
process must load neither torch nor NumPy by itself.
"""

from importlib.util import find_spec

from gradwright.errors import missing_extra

if find_spec("numpy") is None:  # pragma: no cover - NumPy is among the tools that tests need
    raise missing_extra("gw.external", "numpy")
