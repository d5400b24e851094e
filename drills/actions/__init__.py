"""The actions of the drills of the table, by subject."""
