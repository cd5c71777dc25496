"""Stores as data frames: what the driver plans and what a task reads."""
