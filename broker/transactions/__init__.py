"""Transactions: half messages, their outcomes, and the checks of open ones."""
