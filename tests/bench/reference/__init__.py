"""The released reference, started from its published jars, to be measured beside ours."""
