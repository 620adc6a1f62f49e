"""The smallest kernel there is: it tells whether TileLang can compile and run anything here."""

import tilelang
import tilelang.language as T
import torch

from sections.common.build import build
from sections.common.device import Device


@tilelang.jit
def add_one(A):
    """B[i] = A[i] + 1. A: (N,) float32, returns (N,) float32."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            B[i] = A[i] + 1
    return B


def smoke(device: Device) -> None:
    """Compile and run `add_one`; raises whatever goes wrong."""
    (kernel,) = build(device, [(add_one, {"N": 32})])
    if isinstance(kernel, BaseException):
        raise kernel
    result = kernel(torch.arange(32, dtype=torch.float32, device=device.torch_device))
    if result.cpu().tolist() != [n + 1.0 for n in range(32)]:
        raise RuntimeError(f"a tiny kernel gave a wrong result: {result.cpu().tolist()}")
