"""The timer wheel and the timer log. Derived data."""
