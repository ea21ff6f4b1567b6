"""Trainings to copy: short, real, and written so that they survive."""
