"""The paper's experiments: plans, runs and reports them."""
