"""Durable state of a replica: metadata, epochs, positions, group state and digests."""
