"""Recovery of the store after a clean stop, a killed process or a power loss."""
