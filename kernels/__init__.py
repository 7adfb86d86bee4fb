"""Pure tensor functions, one operation a file; they know nothing of requests, plans or models.

`kernels.cpu` is one native library that computes a whole forward pass; it keeps promises of its own.

Every operation has a reference in plain torch, which is its specification and its CPU backend in one. On a CPU the
references keep one more promise: a row's result has the same bits whatever the batch, the chunk or the padding around
it. They fix the order of every sum for that, as far as torch lets them: the promise is tested on x86 processors with
MKL, in float32, and in bfloat16 where the processor has it (AVX-512) and no matrix unit (AMX). Elsewhere results may
differ in the last bits, as with any other server.
"""

PROJECT = "citybus"
"""Tells this package from the one of the same name that Hugging Face publishes."""
