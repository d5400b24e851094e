"""Test kit: a real broker, a virtual clock, fault injection, a pytest plugin."""

from .broker import TestBroker, VirtualClock

__all__ = ["TestBroker", "VirtualClock"]
