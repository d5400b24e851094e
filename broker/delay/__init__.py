"""Delayed messages: the 18 delay levels, arbitrary times through the timer wheel, and recalls."""
