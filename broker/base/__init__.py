"""What every part of a broker stands on: configuration, clock, role, counters, bounded turns."""
