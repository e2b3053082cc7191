"""Straight-through estimators and surrogate gradients that say what they are.

Every function here declares the function whose derivative it uses on purpose, edge by edge, and is proved against it.
``gradwright show ste`` lists them.
"""

from gradwright.ste.activations import pact as pact
from gradwright.ste.calibrated import absmax as absmax
from gradwright.ste.calibrated import quest as quest
from gradwright.ste.calibrated import quest_scale as quest_scale
from gradwright.ste.dorefa import dorefa_activations as dorefa_activations
from gradwright.ste.dorefa import dorefa_gradients as dorefa_gradients
from gradwright.ste.dorefa import dorefa_weights as dorefa_weights
from gradwright.ste.learned import lsq as lsq
from gradwright.ste.learned import lsq_plus as lsq_plus
from gradwright.ste.learned import lsq_scale as lsq_scale
from gradwright.ste.levels import apot as apot
from gradwright.ste.levels import apot_levels as apot_levels
from gradwright.ste.levels import hwgq as hwgq
from gradwright.ste.ranges import learned_range as learned_range
from gradwright.ste.ranges import tqt as tqt
from gradwright.ste.rounding import ceil as ceil
from gradwright.ste.rounding import floor as floor
from gradwright.ste.rounding import round as round
from gradwright.ste.rounding import round_half_away as round_half_away
from gradwright.ste.rounding import trunc as trunc
from gradwright.ste.stretched import seq as seq
from gradwright.ste.uniform import codes as codes
from gradwright.ste.uniform import fake_quantize as fake_quantize
