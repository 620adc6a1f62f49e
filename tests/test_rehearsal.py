"""The substitution of the CPU rehearsal: which names, on which target, in which thread."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import tilelang.language as T

from sections.common import rehearsal
from sections.common.codegen import trace
from tests.kernels_for_tests import add, gemm, scale

CUDA = {"kind": "cuda", "arch": "sm_90a"}
SIZES = {"M": 64, "N": 64, "K": 64}


@pytest.fixture(autouse=True)
def installed():
    rehearsal.install()


def is_c(text: str) -> bool:
    """Whether a traced gemm is wholly the C one (True) or wholly the CUDA one (False)."""
    c = 'scope="local"' in text
    cuda = 'scope="shared.dyn"' in text and 'scope="local.fragment"' in text
    assert c != cuda, text
    assert not (c and ("shared" in text.replace("_shared", "") or "fragment" in text)), text
    return c


def test_each_target_gets_its_own_memory_and_loops():
    for kernel, arguments in [(gemm, SIZES), (scale, {"N": 100}), (add, {"N": 100})]:
        c = trace(kernel, "c", arguments).text
        cuda = trace(kernel, CUDA, arguments).text
        assert 'scope="local"' in c and 'scope="local"' not in cuda
        assert "T.parallel" not in c
    assert "T.parallel" in cuda


def test_the_original_gets_all_its_arguments():
    cuda = trace(scale, CUDA, {"N": 100}).text
    assert 'scope="shared")' in cuda
    assert '"coalesced_width": 2' in cuda


def test_without_a_target_the_default_target_decides(monkeypatch):
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", "c")
    assert is_c(gemm.get_tir(**SIZES).script())
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", '{"kind": "cuda", "arch": "sm_80"}')
    assert not is_c(gemm.get_tir(**SIZES).script())


def test_installing_twice_changes_nothing():
    before = T.alloc_shared, T.alloc_fragment, T.Parallel
    rehearsal.install()
    assert (T.alloc_shared, T.alloc_fragment, T.Parallel) == before
    assert T.alloc_shared.__wrapped__.__module__.startswith("tilelang.")


def test_four_threads_mix_c_and_cuda():
    together = Barrier(4)

    def work(number: int) -> list[bool]:
        together.wait()
        kinds = []
        for turn in range(15):
            target = "c" if (number + turn) % 2 else CUDA
            # A size of its own each time, so that nothing can come from a cache.
            text = trace(gemm, target, {**SIZES, "M": 64 + 16 * number + turn}).text
            kinds.append(is_c(text) == (target == "c"))
        return kinds

    with ThreadPoolExecutor(4) as pool:
        kinds = [kind for result in pool.map(work, range(4)) for kind in result]
    assert kinds == [True] * 60
    assert is_c(trace(gemm, "c", SIZES).text) and not is_c(trace(gemm, CUDA, SIZES).text)
