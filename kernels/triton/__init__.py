"""The operations in Triton, for GPUs. A machine that computes on its CPU imports nothing of this: it may lack Triton.

A GPU promises less than a CPU: every kernel here gives a row the same bits beside any neighbours, in any batch; the
matrix products are the vendor's, and they sum in an order that depends on the number of rows.
"""
