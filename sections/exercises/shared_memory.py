"""Fill in: what a schedule needs before it is compiled

A tuner can throw out most configurations without asking a compiler: a product of a few numbers says
how much shared memory a block of section gemm's kernel takes (sections/gemm.py). The pipeline holds
num_stages tiles of A and as many of B at a time, in float16; with 0 stages there is no pipeline and
one of each. Return the number of bytes. Your formula must agree with the compiler's own figure.
"""


def shared_bytes(block_M: int, block_N: int, block_K: int, num_stages: int) -> int:
    """Bytes of shared memory of a block: tiles of A (block_M, block_K) and B (block_K, block_N)."""
    # skeleton:
    # return 48 * 1024  # TODO: a formula
    # solution:
    return max(num_stages, 1) * (block_M + block_N) * block_K * 2
    # end


# check: nothing below is copied into the learner's file

HINTS = (
    """How many elements does a tile of A have, and how many a tile of B? A float16 takes 2 bytes.
    """,
    """One stage is a tile of A and a tile of B: (block_M + block_N) * block_K elements.""",
    """Multiply by 2 bytes and by the number of stages, which is max(num_stages, 1).""",
)
CONFIGS = ((64, 64, 32, 0), (128, 128, 32, 2), (128, 64, 64, 1), (128, 256, 64, 3))


def run(page):
    from sections.common.codegen import generate
    from sections.gemm import gemm

    names = ("block_M", "block_N", "block_K", "num_stages")
    rows = []
    for values in CONFIGS:
        config = dict(zip(names, values, strict=True))
        page.progress(f"asking the compiler about {config}")
        code = generate(gemm, page.device.arch, M=1024, N=1024, K=1024, threads=256, **config)
        rows.append([*values, page.yours.shared_bytes(**config), code.shared_bytes])
    page.table([*names, "yours", "the compiler's"], rows,
               right=(*names, "yours", "the compiler's"))
    for *values, yours, compilers in rows:
        if yours != compilers:
            config = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            page.fail(f"{config}: {yours} bytes, expected {compilers}")
            return
