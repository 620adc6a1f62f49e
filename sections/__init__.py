"""The tour: its sections in the order in which they are told."""

ORDER = (
    "vector_add",
    "gemm",
    "fused_epilogue",
    "softmax",
    "flash_attention",
    "autotune",
    "debugging",
    "architectures",
)
