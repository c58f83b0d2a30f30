"""The paper's experiments: plans, runs and reports them."""

# Those that pretrain models of their own.
PRETRAINING_EXPERIMENTS = ("table5", "table6", "table7", "table8", "figure5")
# Those that start from --pretrained_model_dir.
MODEL_EXPERIMENTS = ("table1", "table2", "table3", "table4")
STABILITY = "stability"
EXPERIMENTS = (*PRETRAINING_EXPERIMENTS, STABILITY, *MODEL_EXPERIMENTS)
