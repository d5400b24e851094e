"""What a program of an operator needs: links, calls, broker groups, reading; no command line."""
