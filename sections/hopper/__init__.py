"""Kernels for Hopper alone: the last step of gemm and of flash_attention."""
