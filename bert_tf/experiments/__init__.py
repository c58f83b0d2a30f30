"""Plans and runs the paper's experiments, and reports their results."""

# Experiments that always start from --pretrained_model_dir.
MODEL_EXPERIMENTS = ("table1", "table2", "table3", "table4")
EXPERIMENTS = (
    *("table5", "table6", "table7", "table8", "figure5", "stability"),
    *MODEL_EXPERIMENTS,
)
