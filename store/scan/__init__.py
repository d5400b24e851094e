"""The segment scanner: walks raw log bytes and returns records as NumPy columns."""
