"""Gradients that are right where PyTorch's own are nan, wrong, silently zero or missing.

Every function here declares what it computes a second time, for numbers of any precision, and is proved against that:
values, first and second derivatives, at the singular points and over the whole range of each dtype.
``gradwright show stable`` lists them, ``gradwright probe`` says what the installed PyTorch gets wrong.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gradwright.errors import did_you_mean as _did_you_mean
from gradwright.stable.alignment import kabsch as kabsch
from gradwright.stable.angles import angle_between as angle_between
from gradwright.stable.arc_hyperbolic import acosh as acosh
from gradwright.stable.arc_hyperbolic import asinh as asinh
from gradwright.stable.arc_squares import acos_squared as acos_squared
from gradwright.stable.arc_squares import acosh_squared as acosh_squared
from gradwright.stable.bce import bce_with_logits as bce_with_logits
from gradwright.stable.crossentropy import cross_entropy as cross_entropy
from gradwright.stable.determinants import adjugate as adjugate
from gradwright.stable.determinants import det as det
from gradwright.stable.determinants import slogdet as slogdet
from gradwright.stable.directions import cosine_similarity as cosine_similarity
from gradwright.stable.directions import normalize as normalize
from gradwright.stable.directions import pairwise_distance as pairwise_distance
from gradwright.stable.directions import weight_norm as weight_norm
from gradwright.stable.distances import cdist as cdist
from gradwright.stable.distances import pdist as pdist
from gradwright.stable.divergences import entropy as entropy
from gradwright.stable.divergences import js_divergence as js_divergence
from gradwright.stable.divergences import kl_divergence as kl_divergence
from gradwright.stable.eigenvectors import eigh as eigh
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
from gradwright.stable.indexing import index_copy as index_copy
from gradwright.stable.indexing import index_put as index_put
from gradwright.stable.indexing import put as put
from gradwright.stable.indexing import scatter as scatter
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
from gradwright.stable.masking import masked as masked
from gradwright.stable.masking import masked_mean as masked_mean
from gradwright.stable.masking import masked_sum as masked_sum
from gradwright.stable.masking import where as where
from gradwright.stable.mills import erfcx as erfcx
from gradwright.stable.mills import mills_ratio as mills_ratio
from gradwright.stable.normal import log_ndtr as log_ndtr
from gradwright.stable.normal import ndtr as ndtr
from gradwright.stable.normal_inverse import ndtri_exp as ndtri_exp
from gradwright.stable.norms import norm as norm
from gradwright.stable.planar import angle as angle
from gradwright.stable.planar import atan2 as atan2
from gradwright.stable.planar import hypot as hypot
from gradwright.stable.polar import orthogonal_factor as orthogonal_factor
from gradwright.stable.polar import polar as polar
from gradwright.stable.products import cumprod as cumprod
from gradwright.stable.products import prod as prod
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
from gradwright.stable.singular_vectors import svd as svd
from gradwright.stable.singular_vectors import truncated_svd as truncated_svd
from gradwright.stable.singularity import find_switches as find_switches
from gradwright.stable.singularity import quotient as quotient
from gradwright.stable.singularity import removable as removable
from gradwright.stable.so3 import so3_exp as so3_exp
from gradwright.stable.so3 import so3_log as so3_log
from gradwright.stable.softmaxes import log_softmax as log_softmax
from gradwright.stable.softmaxes import softmax as softmax
from gradwright.stable.spectral import expm as expm
from gradwright.stable.spectral import invsqrtm as invsqrtm
from gradwright.stable.spectral import logm as logm
from gradwright.stable.spectral import matrix_function as matrix_function
from gradwright.stable.spectral import powm as powm
from gradwright.stable.spectral import sqrtm as sqrtm
from gradwright.stable.spread import std as std
from gradwright.stable.spread import var as var
from gradwright.stable.subspaces import low_rank as low_rank
from gradwright.stable.subspaces import projector as projector
from gradwright.stable.truncated import log_ndtr_between as log_ndtr_between
from gradwright.stable.truncated import truncated_normal_mean as truncated_normal_mean
from gradwright.stable.xlogs import xlogx as xlogx
from gradwright.stable.xlogs import xlogy as xlogy

if not _TYPE_CHECKING:  # so that type checkers still tell what there is
    # Without the modules, which are not for users: `help` and the guesses go by it.
    __all__ = sorted(name for name, value in globals().items() if callable(value) and name[0] != "_")

    def __getattr__(name: str) -> object:
        guess = "" if name.startswith("_") else _did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{guess}", name=name)
