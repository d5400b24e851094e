"""What is installed on this machine: its version, checks of it, and completion for shells."""
