"""Checking: a verdict with reasons on every part of the contract of a custom gradient.

Read in this order: :mod:`run` (the loop), :mod:`subject` (what is checked), :mod:`samples` (on which inputs),
:mod:`case` (one subject on one sample, ready to be evaluated), :mod:`contracts` (one property a file), and the
numerics :mod:`differences`, :mod:`judge`, :mod:`projection`.
"""
