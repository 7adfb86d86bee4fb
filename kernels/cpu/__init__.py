"""The forward pass of a step in bfloat16 as one native library, for x86 processors.

Weights are packed once into the order in which the processor's bf16 instructions take them, and keys and values are
stored in such an order too, in the memory of the same pool. Every sum runs in one fixed order, whatever the batch: a
token has the same bits alone, beside any neighbours, in a prefill chunk and as a decode. Different instruction sets
may differ in the last bits. `api.h` is the interface, `operations.h` what is compiled once for each instruction set.
"""
