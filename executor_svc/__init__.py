"""The executor: owns the weights and the paged keys and values, computes the steps a scheduler plans."""
