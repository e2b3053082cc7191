"""Gradients that are right where PyTorch's own are nan, wrong, silently zero or missing.

Every function here declares what it computes a second time, for numbers of any precision, and is proved against that:
values, first and second derivatives, at the singular points and over the whole range of each dtype.
``gradwright show stable`` lists them, ``gradwright probe`` says what the installed PyTorch gets wrong.
"""

from gradwright.stable.arc_squares import acos_squared as acos_squared
from gradwright.stable.arc_squares import acosh_squared as acosh_squared
from gradwright.stable.distances import cdist as cdist
from gradwright.stable.distances import pdist as pdist
from gradwright.stable.growth_ratios import expm1_over_x as expm1_over_x
from gradwright.stable.growth_ratios import log1p_over_x as log1p_over_x
from gradwright.stable.growth_ratios import log_over_x_minus_1 as log_over_x_minus_1
from gradwright.stable.growth_ratios import sinh_over_x as sinh_over_x
from gradwright.stable.growth_ratios import tanh_over_x as tanh_over_x
from gradwright.stable.logistic import sigmoid as sigmoid
from gradwright.stable.mills import erfcx as erfcx
from gradwright.stable.mills import mills_ratio as mills_ratio
from gradwright.stable.normal import log_ndtr as log_ndtr
from gradwright.stable.normal import ndtr as ndtr
from gradwright.stable.normal_inverse import ndtri_exp as ndtri_exp
from gradwright.stable.ratios import one_minus_cos_over_x2 as one_minus_cos_over_x2
from gradwright.stable.ratios import sin_over_x as sin_over_x
from gradwright.stable.ratios import sinc as sinc
from gradwright.stable.ratios import x_minus_sin_over_x3 as x_minus_sin_over_x3
from gradwright.stable.ratios import x_over_tan as x_over_tan
from gradwright.stable.singularity import find_switches as find_switches
from gradwright.stable.singularity import quotient as quotient
from gradwright.stable.singularity import removable as removable
from gradwright.stable.truncated import log_ndtr_between as log_ndtr_between
from gradwright.stable.truncated import truncated_normal_mean as truncated_normal_mean
