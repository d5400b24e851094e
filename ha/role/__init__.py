"""The role of a replica: election directives, promotion, step-down and the controller session."""
