"""Kernels for Hopper alone: the last step of gemm, fused_epilogue, softmax, flash_attention."""
