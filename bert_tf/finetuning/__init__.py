"""Fine-tuning on the tasks of the paper."""
