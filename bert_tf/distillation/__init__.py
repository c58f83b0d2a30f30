"""Distillation: a student model learns from a teacher model."""
