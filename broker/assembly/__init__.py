"""Composition of the parts behind the services of a broker."""
