"""Beat: a Hopper schedule on a T4

The schedule below is a good one for section gemm's kernel (sections/gemm.py) on an H100, where a
block may have 227 KB of shared memory. A T4 (sm_75) has 64 KB and no room for it. Find values that
fit, fetch each element seldom (each is used 128 times) and keep the next tile apart from the one
that is multiplied (at least 2 stages). The code generated for sm_75 is the judge, on any machine.
"""

SCHEDULE = {
    # skeleton:
    # "block_M": 128,
    # "block_N": 256,
    # "block_K": 64,
    # "num_stages": 3,
    # "threads": 256,
    # solution:
    "block_M": 128,
    "block_N": 128,
    "block_K": 64,
    "num_stages": 2,
    "threads": 256,
    # end
}


# check: nothing below is copied into the learner's file

HINTS = (
    """A block needs num_stages * (block_M + block_N) * block_K * 2 bytes. Which of the four numbers
    can shrink without fetching more?""",
    """block_K and num_stages cost shared memory but do not change how often an element is used;
    that is 2 * block_M * block_N / (block_M + block_N).""",
    """A tile of 128 x 128 uses each element 128 times. With 2 stages that leaves block_K=64 at
    most.""",
)


def run(page):
    from sections.common.codegen import generate
    from sections.common.device import SHARED_BYTES
    from sections.exercises.checking import fits, judge, reuse
    from sections.gemm import SHOWN, case, gemm, inputs, reference, sizes

    schedule = dict(page.yours.SCHEDULE)
    page.progress("generating CUDA for sm_75")
    code = generate(gemm, "sm_75", **sizes(*[SHOWN] * 3), **schedule)
    fitting = judge(page, [
        fits(code, SHARED_BYTES["sm_75"], "sm_75"),
        reuse(schedule, 128),
        ("at least 2 stages", schedule["num_stages"], schedule["num_stages"] >= 2),
    ], code)
    if fitting:
        shape = (150, 280, 70)
        (kernel,) = page.build([(gemm, {**sizes(*shape), **schedule})])
        A, B = inputs(page, *shape)
        page.check(case(*shape), kernel, (A, B), reference(A, B), reduction=shape[2])
