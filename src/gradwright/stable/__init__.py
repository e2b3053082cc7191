"""Gradients that are right where PyTorch's own are nan, wrong, silently zero or missing.

Every function here declares what it computes a second time, for numbers of any precision, and is proved against that:
values, first and second derivatives, at the singular points and over the whole range of each dtype.
``gradwright show stable`` lists them, ``gradwright probe`` says what the installed PyTorch gets wrong.
"""

from gradwright.stable.angles import angle_between as angle_between
from gradwright.stable.arc_squares import acos_squared as acos_squared
from gradwright.stable.arc_squares import acosh_squared as acosh_squared
from gradwright.stable.crossentropy import cross_entropy as cross_entropy
from gradwright.stable.divergences import entropy as entropy
from gradwright.stable.divergences import js_divergence as js_divergence
from gradwright.stable.divergences import kl_divergence as kl_divergence
from gradwright.stable.growth_ratios import expm1_over_x as expm1_over_x
from gradwright.stable.growth_ratios import log1p_over_x as log1p_over_x
from gradwright.stable.growth_ratios import log_over_x_minus_1 as log_over_x_minus_1
from gradwright.stable.growth_ratios import sinh_over_x as sinh_over_x
from gradwright.stable.growth_ratios import tanh_over_x as tanh_over_x
from gradwright.stable.likelihoods import bernoulli_kl as bernoulli_kl
from gradwright.stable.likelihoods import poisson_nll as poisson_nll
from gradwright.stable.logistic import sigmoid as sigmoid
from gradwright.stable.logpairs import logaddexp as logaddexp
from gradwright.stable.logpairs import logsubexp as logsubexp
from gradwright.stable.logspace import logcumsumexp as logcumsumexp
from gradwright.stable.logspace import logsumexp as logsumexp
from gradwright.stable.mills import erfcx as erfcx
from gradwright.stable.mills import mills_ratio as mills_ratio
from gradwright.stable.normal import log_ndtr as log_ndtr
from gradwright.stable.normal import ndtr as ndtr
from gradwright.stable.normal_inverse import ndtri_exp as ndtri_exp
from gradwright.stable.quaternion_products import quaternion_conjugate as quaternion_conjugate
from gradwright.stable.quaternion_products import quaternion_multiply as quaternion_multiply
from gradwright.stable.quaternion_products import quaternion_rotate as quaternion_rotate
from gradwright.stable.quaternions import quaternion_exp as quaternion_exp
from gradwright.stable.quaternions import quaternion_log as quaternion_log
from gradwright.stable.quaternions import slerp as slerp
from gradwright.stable.ratios import one_minus_cos_over_x2 as one_minus_cos_over_x2
from gradwright.stable.ratios import sin_over_x as sin_over_x
from gradwright.stable.ratios import sinc as sinc
from gradwright.stable.ratios import x_minus_sin_over_x3 as x_minus_sin_over_x3
from gradwright.stable.ratios import x_over_tan as x_over_tan
from gradwright.stable.rotation_matrices import matrix_to_quaternion as matrix_to_quaternion
from gradwright.stable.rotation_matrices import matrix_to_rotation_6d as matrix_to_rotation_6d
from gradwright.stable.rotation_matrices import quaternion_to_matrix as quaternion_to_matrix
from gradwright.stable.rotation_matrices import rotation_6d as rotation_6d
from gradwright.stable.se3 import se3_exp as se3_exp
from gradwright.stable.se3 import se3_log as se3_log
from gradwright.stable.singularity import find_switches as find_switches
from gradwright.stable.singularity import quotient as quotient
from gradwright.stable.singularity import removable as removable
from gradwright.stable.so3 import so3_exp as so3_exp
from gradwright.stable.so3 import so3_log as so3_log
from gradwright.stable.softmaxes import log_softmax as log_softmax
from gradwright.stable.softmaxes import softmax as softmax
from gradwright.stable.xlogs import xlogx as xlogx
from gradwright.stable.xlogs import xlogy as xlogy
