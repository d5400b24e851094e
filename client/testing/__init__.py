"""The test kit of the SDK: a real broker process, a virtual clock, injected faults, a pytest plugin."""

from .broker import TestBroker, VirtualClock

__all__ = ["TestBroker", "VirtualClock"]
