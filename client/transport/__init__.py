"""Connections of the SDK: addresses, credentials, gRPC channels and calls."""
