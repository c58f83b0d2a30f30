"""Distillation: a student learns from a teacher."""
