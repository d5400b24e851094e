"""Lite topics: many small ordered topics within one, received by subscription."""
