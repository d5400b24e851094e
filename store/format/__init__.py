"""File formats of the store: record codec, properties, readers and writers of single files."""
