"""Scrub: verifies finished segments against digests and other replicas, and repairs them."""
