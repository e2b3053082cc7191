"""Gradients that are right where PyTorch's own are nan, wrong, silently zero or missing.

Every function here declares what it computes a second time, for numbers of any precision, and is proved against that:
values, first and second derivatives, at the singular points and over the whole range of each dtype.
``gradwright show stable`` lists them, ``gradwright probe`` says what the installed PyTorch gets wrong.
"""

from gradwright.stable.arc_hyperbolic import acosh as acosh
from gradwright.stable.arc_hyperbolic import asinh as asinh
from gradwright.stable.arc_squares import acos_squared as acos_squared
from gradwright.stable.arc_squares import acosh_squared as acosh_squared
from gradwright.stable.bce import bce_with_logits as bce_with_logits
from gradwright.stable.crossentropy import cross_entropy as cross_entropy
from gradwright.stable.directions import cosine_similarity as cosine_similarity
from gradwright.stable.directions import normalize as normalize
from gradwright.stable.directions import pairwise_distance as pairwise_distance
from gradwright.stable.directions import weight_norm as weight_norm
from gradwright.stable.divergences import entropy as entropy
from gradwright.stable.divergences import js_divergence as js_divergence
from gradwright.stable.divergences import kl_divergence as kl_divergence
from gradwright.stable.exponential import exp2 as exp2
from gradwright.stable.exponential import expm1 as expm1
from gradwright.stable.exponential import log1mexp as log1mexp
from gradwright.stable.exponential import log_expm1 as log_expm1
from gradwright.stable.gates import mish as mish
from gradwright.stable.gates import silu as silu
from gradwright.stable.gaussian_gate import gelu as gelu
from gradwright.stable.growth_ratios import expm1_over_x as expm1_over_x
from gradwright.stable.growth_ratios import log1p_over_x as log1p_over_x
from gradwright.stable.growth_ratios import log_over_x_minus_1 as log_over_x_minus_1
from gradwright.stable.growth_ratios import sinh_over_x as sinh_over_x
from gradwright.stable.growth_ratios import tanh_over_x as tanh_over_x
from gradwright.stable.hyperbolic import logcosh as logcosh
from gradwright.stable.hyperbolic import logsinh as logsinh
from gradwright.stable.hyperbolic import tanh as tanh
from gradwright.stable.likelihoods import bernoulli_kl as bernoulli_kl
from gradwright.stable.likelihoods import poisson_nll as poisson_nll
from gradwright.stable.log_logistic import inverse_softplus as inverse_softplus
from gradwright.stable.log_logistic import log1msigmoid as log1msigmoid
from gradwright.stable.log_logistic import logsigmoid as logsigmoid
from gradwright.stable.log_logistic import softplus as softplus
from gradwright.stable.logistic import logit as logit
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
from gradwright.stable.norms import norm as norm
from gradwright.stable.planar import angle as angle
from gradwright.stable.planar import atan2 as atan2
from gradwright.stable.planar import hypot as hypot
from gradwright.stable.products import cumprod as cumprod
from gradwright.stable.products import prod as prod
from gradwright.stable.ratios import one_minus_cos_over_x2 as one_minus_cos_over_x2
from gradwright.stable.ratios import sin_over_x as sin_over_x
from gradwright.stable.ratios import sinc as sinc
from gradwright.stable.ratios import x_minus_sin_over_x3 as x_minus_sin_over_x3
from gradwright.stable.ratios import x_over_tan as x_over_tan
from gradwright.stable.singularity import find_switches as find_switches
from gradwright.stable.singularity import quotient as quotient
from gradwright.stable.singularity import removable as removable
from gradwright.stable.softmaxes import log_softmax as log_softmax
from gradwright.stable.softmaxes import softmax as softmax
from gradwright.stable.spread import std as std
from gradwright.stable.spread import var as var
from gradwright.stable.xlogs import xlogx as xlogx
from gradwright.stable.xlogs import xlogy as xlogy
