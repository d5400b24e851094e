"""What all handlers of classic clients stand on: bodies, errors, groups with their members."""
