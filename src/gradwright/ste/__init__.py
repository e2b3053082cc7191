"""Straight-through estimators and surrogate gradients that say what they are.

Every function here declares the function whose derivative it uses on purpose, edge by edge, and is proved against it.
``gradwright show ste`` lists them.
"""
