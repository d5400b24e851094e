"""Contexts: named clusters that commands can address from any directory."""
