"""Messages that come later: the 18 levels, arbitrary times through the timer wheel, recall."""
