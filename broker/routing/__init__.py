"""Routes, cluster membership, and which replica serves a request."""
