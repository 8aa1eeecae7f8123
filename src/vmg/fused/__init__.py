"""Faster forms of what ``vmg.math`` states: hand-written gradients, and compiled loops for the CPU (``csrc``)."""
