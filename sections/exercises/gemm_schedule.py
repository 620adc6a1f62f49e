"""Beat: a schedule that waits

Section gemm's kernel (sections/gemm.py) with a poor schedule: small tiles, so that every element is
fetched often, and no pipeline, so that every fetch is waited for. Change the values, not the
kernel. On a GPU yours must be 1.25 times as fast; without one the generated code is the
judge. Section gemm shows what each value is good for.
"""

SCHEDULE = {
    # skeleton:
    # "block_M": 64,  # rows of a tile of C
    # "block_N": 64,  # columns of a tile of C
    # "block_K": 32,  # how much of K is fetched at a time
    # "num_stages": 0,  # how many tiles of A and of B are on their way at once
    # solution:
    "block_M": 128,  # rows of a tile of C
    "block_N": 128,  # columns of a tile of C
    "block_K": 32,  # how much of K is fetched at a time
    "num_stages": 3,  # how many tiles of A and of B are on their way at once
    # end
    "threads": 128,
}


# check: nothing below is copied into the learner's file

HINTS = (
    """A tile of block_M x block_N fetches (block_M + block_N) elements for every block_M x block_N
    multiplications. What happens to that ratio when both sides are doubled?""",
    """Without a pipeline (num_stages=0) the tensor cores wait for every copy. With 2 stages the
    next tile is on its way while this one is multiplied, with 3 the one after it, too.""",
    """block_M=128, block_N=128, num_stages=3 will do; then try block_K=64.""",
)
GIVEN = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 0, "threads": 128}
ENOUGH = 1.25  # times as fast as the given one


def run(page):
    from sections.common.ladder import describe
    from sections.common.measure import Work
    from sections.exercises.checking import copies_asynchronously, fits, judge, reuse
    from sections.gemm import SHOWN, case, gemm, inputs, reference, sizes

    device = page.device
    yours = {**GIVEN, **page.yours.SCHEDULE}
    page.say(f"Given: {describe(GIVEN)}. Yours: {describe(yours)}.")
    size = ((2048 if page.quick else SHOWN),) * 3 if device.is_gpu else (150, 280, 70)
    kernel, given = page.build((gemm, {**sizes(*size), **schedule}) for schedule in (yours, GIVEN))
    code = page.code(kernel, **sizes(*[SHOWN] * 3))
    rules = [fits(code, device.shared_bytes, device.arch)]
    if not device.is_gpu:
        rules += [
            reuse(yours, 128),
            ("at least 2 stages", yours["num_stages"], yours["num_stages"] >= 2),
        ]
        if device.arch != "sm_75":  # which has no asynchronous copies
            rules.append(copies_asynchronously(code))
    if not judge(page, rules, None if device.is_gpu else code):
        return
    A, B = inputs(page, *size)
    passed = [page.check(case(*size), built, (A, B), reference(A, B), reduction=size[2])
              for built in (kernel, given)]
    if not device.is_gpu or not all(passed):
        return
    (row,) = page.measure(case(*size), describe(yours), kernel, (A, B),
                          {"the given schedule": lambda: given(A, B)},
                          Work(flops=2 * size[0] * size[1] * size[2]))
    page.timings([row])
    judge(page, [(f"{ENOUGH:.2f} times as fast as the given schedule", f"{row['ratio']:.2f} times",
                  row["ratio"] >= ENOUGH)])
