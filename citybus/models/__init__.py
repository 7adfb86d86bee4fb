"""The models directory: what is in it, and how a model gets there."""
