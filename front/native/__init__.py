"""The native door: the half in Python of the HTTP/2 server in the crate `native/`."""
