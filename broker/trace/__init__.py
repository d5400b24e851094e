"""The message trace written by the broker."""
