"""Straight-through estimators and surrogate gradients that say what they are.

Every function here declares the function whose derivative it uses on purpose, edge by edge, and is proved against it.
``gradwright show ste`` lists them.
"""

from gradwright.ste.comparison import Comparison as Comparison
from gradwright.ste.comparison import compare as compare
from gradwright.ste.grids import Codes as Codes
from gradwright.ste.grids import Grid as Grid
from gradwright.ste.model import QuantizedLayer as QuantizedLayer
from gradwright.ste.model import QuantizedModel as QuantizedModel
from gradwright.ste.model import export_codes as export_codes
from gradwright.ste.model import quantize_model as quantize_model
from gradwright.ste.modules import Quantize as Quantize
from gradwright.ste.reversal import GradientReversal as GradientReversal
from gradwright.ste.rounding import ceil as ceil
from gradwright.ste.rounding import floor as floor
from gradwright.ste.rounding import round as round
from gradwright.ste.rounding import round_half_away as round_half_away
from gradwright.ste.rounding import trunc as trunc
from gradwright.ste.uniform import codes as codes
from gradwright.ste.uniform import fake_quantize as fake_quantize
