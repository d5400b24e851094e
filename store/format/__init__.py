"""Formats of the store files: record codec, properties, and readers and writers of single files."""
