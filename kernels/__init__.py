"""Pure tensor functions, one operation a file; they know nothing of requests, plans or models.

Every operation has a reference in plain torch, which is its specification and its CPU backend in one. On a CPU the
references keep one more promise: a row's result has the same bits whatever the batch, the chunk or the padding around
it. They fix the order of every sum for that; `backend.kernels_for` sets up the arithmetic they count on.
"""

PROJECT = "citybus"
"""Tells this package from the one of the same name that Hugging Face publishes."""
