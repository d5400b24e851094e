"""Routes, cluster membership, and request routing."""
