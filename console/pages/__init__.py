"""The pages of the console: one module for each subject, a class with its routes."""
