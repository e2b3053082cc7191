"""Straight-through estimators and surrogate gradients that say what they are.

Every function here declares the function whose derivative it uses on purpose, edge by edge, and is proved against it.
``gradwright show ste`` lists them.
"""

from gradwright.ste.clipping import clamp as clamp
from gradwright.ste.clipping import clamp_inward as clamp_inward
from gradwright.ste.clipping import clamp_learned as clamp_learned
from gradwright.ste.kinks import abs as abs
from gradwright.ste.kinks import threshold as threshold
from gradwright.ste.learned_rounding import adaround as adaround
from gradwright.ste.learned_rounding import rectified_sigmoid as rectified_sigmoid
from gradwright.ste.learned_rounding import round_with_offset as round_with_offset
from gradwright.ste.rounding import ceil as ceil
from gradwright.ste.rounding import floor as floor
from gradwright.ste.rounding import round as round
from gradwright.ste.rounding import round_half_away as round_half_away
from gradwright.ste.rounding import trunc as trunc
from gradwright.ste.shaping import clip_gradient as clip_gradient
from gradwright.ste.shaping import clip_gradient_norm as clip_gradient_norm
from gradwright.ste.shaping import lower_bound as lower_bound
from gradwright.ste.shaping import noisy_gradient as noisy_gradient
from gradwright.ste.shaping import reverse_gradient as reverse_gradient
from gradwright.ste.shaping import scale_gradient as scale_gradient
from gradwright.ste.shaping import stop_gradient as stop_gradient
from gradwright.ste.soft import dsq as dsq
from gradwright.ste.soft import round_through_soft as round_through_soft
from gradwright.ste.soft import soft_round as soft_round
from gradwright.ste.stochastic import stochastic_round as stochastic_round
from gradwright.ste.stochastic import uniform_noise as uniform_noise
from gradwright.ste.uniform import codes as codes
from gradwright.ste.uniform import fake_quantize as fake_quantize
from gradwright.ste.weighed import ewgs_round as ewgs_round
from gradwright.ste.weighed import fp4_dge as fp4_dge
