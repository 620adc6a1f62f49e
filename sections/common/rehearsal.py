"""The CPU rehearsal: the tour's kernels, unchanged, on TileLang's C backend.

The C backend knows neither shared memory nor fragments nor threads. `install` therefore replaces
some names in `tilelang.language`, which kernels use as `T.<name>`, and one default:

    T.alloc_shared, T.alloc_fragment   ->  T.alloc_local: an ordinary array
    T.Parallel                         ->  T.serial or T.grid: ordinary loops, one iteration
                                           after the other
    T.annotate_producer_reg_dealloc, T.annotate_consumer_reg_alloc
                                       ->  nothing: they deal out a GPU's registers
    the autotuner's timer              ->  the wall clock: a CPU has no CUDA events

Each call decides anew: where the current target is C (or none is set and C is the default target)
the replacement is used, otherwise the original with all its arguments. The current target belongs
to a thread, so one kernel can be traced for C and for CUDA side by side.

All else stays: the kernel's source, T.copy, T.gemm, reductions, T.Pipelined, tile sizes and
bounds guards. What a rehearsal cannot show: races between threads, layouts in shared memory, the
order in which threads add up, instructions of one architecture, time.
"""

from functools import partialmethod, wraps

import tilelang.language as T
from tilelang.autotuner import AutoTuner
from tilelang.env import env
from tvm.target import Target

# float16 arithmetic has no vector form in C.
PASS_CONFIGS = {"tirx.disable_vectorize": True}
COMPILE_FLAGS = ["-O2"]

_installed = False


def install() -> None:
    """Replace the names and the default. A second call changes nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    T.alloc_shared = _on_c(_array, T.alloc_shared)
    T.alloc_fragment = _on_c(_array, T.alloc_fragment)
    T.Parallel = _on_c(_loops, T.Parallel)
    T.annotate_producer_reg_dealloc = _on_c(_nothing, T.annotate_producer_reg_dealloc)
    T.annotate_consumer_reg_alloc = _on_c(_nothing, T.annotate_consumer_reg_alloc)
    AutoTuner.set_profile_args = partialmethod(AutoTuner.set_profile_args, backend="wall")


def _on_c(replacement, original):
    """A function that is `replacement` where the target is C and `original` elsewhere."""

    @wraps(original)
    def choose(*args, **kwargs):
        return (replacement if _target_is_c() else original)(*args, **kwargs)

    return choose


def _array(shape, dtype, *_, **__):
    return T.alloc_local(shape, dtype)


def _loops(*extents, **_):
    return T.serial(extents[0]) if len(extents) == 1 else T.grid(*extents)


def _nothing(*_, **__):
    pass


def _target_is_c() -> bool:
    target = Target.current(allow_none=True)
    return env.get_default_target() == "c" if target is None else target.kind.name == "c"
