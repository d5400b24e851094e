"""Retention: which segments may be deleted, and the archive watermark."""
