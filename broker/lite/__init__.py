"""Lite topics: many small ordered topics within one parent topic, received by subscription."""
