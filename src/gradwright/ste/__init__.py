"""Straight-through estimators and surrogate gradients that say what they are.

Every function here declares the function whose derivative it uses on purpose, edge by edge, and is proved against it.
``gradwright show ste`` lists them.
"""

from gradwright.ste.activations import pact as pact
from gradwright.ste.binary import approx_sign as approx_sign
from gradwright.ste.binary import clipped_sign as clipped_sign
from gradwright.ste.binary import error_decay_sign as error_decay_sign
from gradwright.ste.binary import sign as sign
from gradwright.ste.binary import stochastic_sign as stochastic_sign
from gradwright.ste.binary import swish_sign as swish_sign
from gradwright.ste.binary_weights import magnitude_sign as magnitude_sign
from gradwright.ste.binary_weights import xnor_weights as xnor_weights
from gradwright.ste.bitnet import bitnet_activations as bitnet_activations
from gradwright.ste.bitnet import bitnet_weights as bitnet_weights
from gradwright.ste.blocks import mx as mx
from gradwright.ste.calibrated import absmax as absmax
from gradwright.ste.calibrated import quest as quest
from gradwright.ste.calibrated import quest_scale as quest_scale
from gradwright.ste.comparison import Comparison as Comparison
from gradwright.ste.comparison import compare as compare
from gradwright.ste.dorefa import dorefa_activations as dorefa_activations
from gradwright.ste.dorefa import dorefa_gradients as dorefa_gradients
from gradwright.ste.dorefa import dorefa_weights as dorefa_weights
from gradwright.ste.float8 import float8 as float8
from gradwright.ste.grids import Codes as Codes
from gradwright.ste.grids import Grid as Grid
from gradwright.ste.learned import lsq as lsq
from gradwright.ste.learned import lsq_plus as lsq_plus
from gradwright.ste.learned import lsq_scale as lsq_scale
from gradwright.ste.levels import apot as apot
from gradwright.ste.levels import apot_levels as apot_levels
from gradwright.ste.levels import hwgq as hwgq
from gradwright.ste.minifloat import minifloat as minifloat
from gradwright.ste.model import QuantizedLayer as QuantizedLayer
from gradwright.ste.model import QuantizedModel as QuantizedModel
from gradwright.ste.model import export_codes as export_codes
from gradwright.ste.model import quantize_model as quantize_model
from gradwright.ste.modules import Quantize as Quantize
from gradwright.ste.nvfp4 import nvfp4 as nvfp4
from gradwright.ste.ranges import learned_range as learned_range
from gradwright.ste.ranges import tqt as tqt
from gradwright.ste.reversal import GradientReversal as GradientReversal
from gradwright.ste.rounding import ceil as ceil
from gradwright.ste.rounding import floor as floor
from gradwright.ste.rounding import round as round
from gradwright.ste.rounding import round_half_away as round_half_away
from gradwright.ste.rounding import trunc as trunc
from gradwright.ste.stretched import seq as seq
from gradwright.ste.ternary import ttq as ttq
from gradwright.ste.ternary import twn as twn
from gradwright.ste.uniform import codes as codes
from gradwright.ste.uniform import fake_quantize as fake_quantize
