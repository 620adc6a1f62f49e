"""The CPU rehearsal: the tour's kernels, unchanged, on TileLang's C backend.

The C backend knows neither shared memory nor fragments nor threads. `install` therefore replaces
three names in `tilelang.language`, which kernels use as `T.<name>`:

    T.alloc_shared, T.alloc_fragment   ->  T.alloc_local: an ordinary array
    T.Parallel                         ->  T.serial or T.grid: ordinary loops, one iteration
                                           after the other

Each call decides anew: where the current target is C (or none is set and C is the default target)
the replacement is used, otherwise the original with all its arguments. The current target belongs
to a thread, so one kernel can be traced for C and for CUDA side by side.

All else stays: the kernel's source, T.copy, T.gemm, reductions, T.Pipelined, tile sizes, bounds
guards and the order of the arithmetic inside a tile. What a rehearsal cannot show: races between
threads, layouts in shared memory, instructions of one architecture, time.
"""

from functools import wraps

import tilelang.language as T
from tilelang.env import env
from tvm.target import Target

# float16 arithmetic has no vector form in C.
PASS_CONFIGS = {"tirx.disable_vectorize": True}
COMPILE_FLAGS = ["-O2"]

_installed = False


def install() -> None:
    """Replace the three names. A second call changes nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    T.alloc_shared = _on_c(lambda shape, dtype, *_, **__: T.alloc_local(shape, dtype))(T.alloc_shared)
    T.alloc_fragment = _on_c(lambda shape, dtype, *_, **__: T.alloc_local(shape, dtype))(T.alloc_fragment)
    T.Parallel = _on_c(_loops)(T.Parallel)


def _on_c(replacement):
    def decorate(original):
        @wraps(original)
        def choose(*args, **kwargs):
            return (replacement if _target_is_c() else original)(*args, **kwargs)

        return choose

    return decorate


def _loops(*extents, **_):
    return T.serial(extents[0]) if len(extents) == 1 else T.grid(*extents)


def _target_is_c() -> bool:
    target = Target.current(allow_none=True)
    return env.get_default_target() == "c" if target is None else target.kind.name == "c"
