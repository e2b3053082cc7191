"""Gradients that are right where PyTorch's own are nan, wrong, silently zero or missing.

Every function here declares what it computes a second time, for numbers of any precision, and is proved against that:
values, first and second derivatives, at the singular points and over the whole range of each dtype.
``gradwright show stable`` lists them, ``gradwright probe`` says what the installed PyTorch gets wrong.
"""

from gradwright.stable.logistic import sigmoid as sigmoid
