"""Configuration of the store, and the catalogue of the JSON files in `config/`."""
