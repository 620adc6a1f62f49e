"""A results file with invented figures, in the form that a whole tour on a GPU writes."""

import copy

CUBLAS = "cuBLAS (torch.matmul)"
TILE = "128x128x32, {} stages, 128 threads, swizzle=0"
LADDER = (
    (TILE.format(0), 0.640, 0.30), (TILE.format(3), 0.400, 0.50),
    ("128x128x64, 3 stages, 128 threads, swizzle=0", 0.290, 0.68),
    ("128x256x64, 3 stages, 256 threads, swizzle=0", 0.220, 0.90),
    ("128x256x64, 3 stages, 256 threads, swizzle=16, full_row, store_shared", 0.202, 0.99),
)
ATTENTION = (
    ("64x64, 0 stages, 128 threads", 0.95, 0.52), ("64x64, 2 stages, 128 threads", 0.80, 0.62),
    ("192x128, 2 stages, 384 threads", 0.60, 0.82),
    ("192x128, 2 stages, 384 threads, fast_math", 0.51, 0.97),
)
TUNED = (  # schedule, ms, ratio, KB of shared memory
    ("128x256x64, 3 stages, 256 threads, swizzle=16", 0.204, 0.98, 144),
    ("128x256x64, 4 stages, 256 threads, swizzle=16", 0.200, 1.00, 192),
    ("128x128x32, 3 stages, 128 threads, swizzle=0", 0.390, 0.52, 48),
    ("256x128x64, 3 stages, 256 threads, swizzle=16", 0.215, 0.94, 144),
    ("128x192x64, 3 stages, 256 threads, swizzle=16", 0.230, 0.87, 120),
    ("128x256x128, 2 stages, 256 threads, swizzle=16", 0.225, 0.89, 192),
)
MATMUL, COPY = 760.0, 4250.0  # TFLOP/s and GB/s


def measurement(case: str, variant: str, ms: float, baseline: str, ratio: float, flops: float = 0,
                moved: float = 0, headline: bool = False, shared: int | None = None) -> dict:
    """One entry; its throughput follows from FLOPs or bytes."""
    value = flops / ms / 1e9 if flops else moved / ms / 1e6
    return {
        "case": case, "variant": variant, "ms": ms, "baseline": baseline,
        "baseline_ms": ms * ratio, "ratio": ratio, "ratio_low": ratio - 0.01,
        "ratio_high": ratio + 0.01, "value": value, "unit": "TFLOP/s" if flops else "GB/s",
        "of_ceiling": value / (MATMUL if flops else COPY), "shared_bytes": shared,
        "headline": headline,
    }


def measurements() -> dict[str, list[dict]]:
    """A section's entries."""
    square, attention = "4096x4096x4096 float16", "4x16x4096x128 float16"
    flops, half = 2 * 4096**3, 2 * 4 * 16 * 4096**2 * 128
    wide = 2 * 16384 * 1024 * 512
    eager, addmm, lt = ("torch eager (A @ B, + bias, F.gelu)", "torch.addmm (+ F.gelu)",
                        "cuBLASLt (torch._addmm_activation)")
    vector, row = 3 * 4 * 268435456, 2 * 2 * 65536 * 4096
    return {
        "vector_add": [
            measurement("268435456 float32", "block_N=1024, 128 threads", 0.738, name, ratio,
                        moved=vector, headline=name == "torch.add")
            for name, ratio in (("torch.add", 1.0), ("copy ceiling", 1.03))],
        "gemm": [
            *(measurement(square, variant, ms, CUBLAS, ratio, flops, headline=ratio == 0.99)
              for variant, ms, ratio in LADDER),
            measurement("8192x8192x8192 float16", LADDER[-1][0], 1.64, CUBLAS, 1.02, 8 * flops)],
        "fused_epilogue": [
            *(measurement(f"{square} erf", "128x256x64", 0.217, name, ratio, flops,
                          headline=name == addmm)
              for name, ratio in ((eager, 1.24), (addmm, 1.02), ("torch.compile", 1.05))),
            *(measurement(f"16384x1024x512 float16 {form}", "128x256x64", 0.052, name, ratio, wide)
              for form, name, ratio in (("erf", eager, 1.9), ("erf", addmm, 1.3),
                                        ("tanh", eager, 1.8), ("tanh", lt, 0.81)))],
        "softmax": [
            measurement("65536x4096 float16", "whole row, 128 threads", 0.264, name, ratio,
                        moved=row, headline=name == "torch.compile")
            for name, ratio in (("torch.softmax", 3.2), ("torch.compile", 2.3),
                                ("copy ceiling", 0.96))],
        "flash_attention": [
            *(measurement(f"{attention} causal", variant, ms, "SDPA (cuDNN)", ratio, half)
              for variant, ms, ratio in ATTENTION),
            measurement(f"{attention} full", ATTENTION[-1][0], 0.85, "SDPA (cuDNN)", 1.01,
                        2 * half, headline=True),
            measurement(f"{attention} full", ATTENTION[-1][0], 0.85, "torch, unfused", 6.5,
                        2 * half)],
        "autotune": [
            *(measurement(square, variant, ms, CUBLAS, ratio, flops, shared=1024 * kb)
              for variant, ms, ratio, kb in TUNED),
            measurement(square, f"tuned: {TUNED[1][0]}", 0.201, CUBLAS, 0.99, flops,
                        headline=True)],
        "debugging": [measurement("192x192x128 float16", "64x64x32, 2 stages, 128 threads", 0.006,
                                  CUBLAS, 0.8, 2 * 192 * 192 * 128)],
    }


DATA = {
    "fused_epilogue": {"ledger": {
        "4096x4096x4096 float16": [
            ["read A: M x K", 33554432, 33554432, 33554432],
            ["read B: K x N", 33554432, 33554432, 33554432],
            ["read bias: N", 8192, 8192, 8192],
            ["write A @ B, read it back: 2 x M x N", 0, 0, 67108864],
            ["write A @ B + bias, read it back: 2 x M x N", 0, 67108864, 67108864],
            ["write C: M x N", 33554432, 33554432, 33554432]],
        "16384x1024x512 float16": [
            ["read A: M x K", 16777216, 16777216, 16777216],
            ["read B: K x N", 1048576, 1048576, 1048576],
            ["read bias: N", 2048, 2048, 2048],
            ["write A @ B, read it back: 2 x M x N", 0, 0, 67108864],
            ["write A @ B + bias, read it back: 2 x M x N", 0, 67108864, 67108864],
            ["write C: M x N", 33554432, 33554432, 33554432]]}},
    "debugging": {
        "fragment": {
            "tile": "C_local", "arch": "sm_90a", "rows": 64, "columns": 64, "threads": 128,
            "sharing": 4, "warps": [" ".join([str(row // 2)] * 8) for row in range(8)],
            "corner": [" ".join(f"{row % 8 * 4 + column // 2}.{row // 8 * 2 + column % 2}"
                                for column in range(8)) for row in range(16)]},
        "swizzle": {
            "tile": "B_shared", "arch": "sm_90a", "row_bytes": 128,
            "pieces": [" ".join(str(8 * row + (piece ^ row)) for piece in range(8))
                       for row in range(8)]},
    },
}


def made(mode: str = "gpu", **environment) -> dict:
    """The results of a tour that never was; in rehearsal without times."""
    gpu = mode != "rehearsal"
    names = measurements()
    return copy.deepcopy({
        "schema": 1, "mode": mode, "exit_code": 0, "seconds": 140.0, "compile_seconds": 57.0,
        "environment": {
            "gpu": "NVIDIA H200" if gpu else None, "arch": "sm_90a", "driver": "580.159.04",
            "torch": "2.11.0", "tilelang": "0.1.15", "python": "3.12.3", "nvcc": "13.0.88",
            **environment},
        "ceilings": {"copy_GBps": COPY if gpu else None, "matmul_TFLOPs": MATMUL if gpu else None},
        "sections": [{
            "name": name, "status": "PASS", "seconds": 10.0, "note": "", "lesson": "",
            "checks": [{"case": "a case", "rel_error": 2e-4, "bound": 1e-3, "passed": True}],
            "measurements": entries if gpu else [], "data": DATA.get(name, {}),
        } for name, entries in names.items()],
    })
