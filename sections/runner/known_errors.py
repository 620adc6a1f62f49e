"""What the errors say that learners meet most: their meaning and the way out, one line each.

`python -m sections.runner.known_errors` prints the table for README.md.
"""

from dataclasses import dataclass

from sections.runner.environment import TESTED


@dataclass(frozen=True)
class Known:
    """An error as it is told, by a part of its text, or by one of several.

    meaning, remedy   what happened, what to do: one clause each
    """

    says: tuple[str, ...]
    meaning: str
    remedy: str


KNOWN = (
    # The GPU
    Known(
        ("an illegal memory access", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        "a kernel read or wrote outside its tensors",
        "hold each index against its tensor's shape; compute-sanitizer, before the python "
        "command, names the place",
    ),
    Known(
        ("CUDA out of memory", "CUDA error: out of memory"),
        "the GPU's memory is full",
        "end what else runs on the GPU (nvidia-smi lists it), or take --quick",
    ),
    Known(
        ("dynamic shared memory size",),
        "the tiles of all stages together are larger than the shared memory a block may have",
        "a smaller block_M, block_N or block_K, or fewer num_stages",
    ),
    Known(
        ("no kernel image is available", "CUDA_ERROR_NO_BINARY_FOR_GPU"),
        "this was compiled for another architecture than this GPU's",
        "leave the target out of @tilelang.jit, or name this GPU's; if torch says it, a torch "
        "built for this GPU",
    ),
    Known(
        ("unsupported toolchain", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        "nvcc is newer than what the GPU's driver understands",
        "an nvcc of the driver's CUDA version or a newer driver; --check names both versions",
    ),
    # A kernel that TileLang refuses
    Known(
        ("No valid warp partition", "must be divisible by 16, but got"),
        "the tile of a T.gemm cannot be dealt out evenly to the block's warps",
        "threads a multiple of 32, 128 or 256 at best; block_M and block_N powers of two from 16 "
        "on",
    ),
    Known(
        ("must be a multiple of micro_size_k",),
        "block_K is no multiple of what one tensor-core instruction takes",
        "a block_K of 16, 32 or 64 for 16-bit numbers, from 32 on for 8-bit ones",
    ),
    Known(
        ("T.gemm K shape check failed",),
        "the two tiles given to T.gemm do not fit together",
        "A is (block_M, block_K) and B is (block_K, block_N); for a B that is stored as "
        "(block_N, block_K) say transpose_B=True",
    ),
    Known(
        ("Get different layout for", "Layout infer conflict between"),
        "a fragment plays two parts that spread it over the threads in two ways",
        "a fragment for each part, with T.copy between them; between two T.gemm the same "
        "policy=T.GemmWarpPolicy.FullRow",
    ),
    Known(
        ("StructuralEqual()(it->second.indices, indices)",),
        "a loop indexes one fragment in two ways: a thread would need another thread's registers",
        "T.alloc_shared for that tile, which every thread can read",
    ),
    Known(
        ("Downcast from tirx.Sub to ir.IntImm",),
        "before sm_90 TileLang cannot pipeline a loop whose length depends on the block",
        'num_stages=1, or pass_configs={"tirx.use_async_copy": False}',
    ),
    Known(
        ("could not get source code",),
        "TileLang reads a kernel's source, and this kernel is in no file",
        "write it into a .py file or a notebook cell, not into exec, python -c or a pipe",
    ),
    Known(
        ("Not all tensor allocated from `T.empty` are returned",),
        "an output made with T.empty does not leave the kernel",
        "return it at the end of the kernel's function",
    ),
    Known(
        ("Cannot find value for constexpr variable",),
        "a size declared with T.const belongs to no tensor that was given",
        "give every tensor, or the size by its name: N=4096",
    ),
    Known(
        ("module 'tilelang.language' has no attribute",),
        "this TileLang has no such name: a slip of the pen, or an example for another version",
        f"python -m pip install tilelang=={TESTED}, or the name that this version has",
    ),
    Known(
        ('" is undefined', "kernel.so: undefined symbol: "),  # CUDA, and C in rehearsal
        "the generated code names something that nothing defines",
        "look for that name in the kernel: T.call_extern or a helper that CUDA does not have",
    ),
    # A kernel that is called
    Known(
        ("mismatch for parameter", "dtype expected", "device_type expected", "ndim expected",
         "dtype mismatch, expected", "ndim mismatch, expected", "unsatisfied constraint",
         "violates packed ABI constraint", "has the wrong device type"),
        "a tensor is not what the kernel was compiled for: its dtype, shape, strides or device",
        "convert it (.half(), .contiguous(), .cuda()), or compile the kernel for that tensor",
    ),
    # The machine
    Known(
        ("/bin/nvcc'", "Failed to automatically detect CUDA"),
        "there is no nvcc where TileLang looks for it",
        "python tilelang_tour.py --check says where that is and how to get one",
    ),
    Known(
        ("No space left on device",),
        "the disk is full that holds compiled kernels or temporary files",
        "df -h shows which; export TILELANG_CACHE_DIR and TMPDIR name folders on another one",
    ),
    Known(
        ("killed by SIGKILL",),
        "the system ended the process, nearly always because the computer's memory was full",
        "close other programs, take --quick, or one section at a time with --only",
    ),
)


def explain(note: str) -> str | None:
    """Meaning and remedy of the error in a section's note, in one line; None for an unknown one."""
    for known in KNOWN:
        if any(part in note for part in known.says):
            return f"That means: {known.meaning}. What helps: {known.remedy}."
    return None


def markdown() -> str:
    """The table for README.md."""
    rows = [f"| `` {known.says[0]} `` | {known.meaning} | {known.remedy} |" for known in KNOWN]
    return "\n".join(["| the error says | that means | what helps |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(markdown())
