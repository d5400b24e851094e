"""Proxy: an access point without a store, for any number of broker groups."""
