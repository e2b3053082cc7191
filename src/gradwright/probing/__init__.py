"""Probes of the installed torch: what it returns against high-precision truth, and what ``gw.stable`` returns there."""
