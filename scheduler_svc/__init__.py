"""The scheduler: who computes how many tokens at each step. CPU only, no torch."""
