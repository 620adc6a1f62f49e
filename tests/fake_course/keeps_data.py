"""Keeps data: a measurement with invented numbers, and something for a picture."""


def run(page):
    page.emit({"event": "measurement", "case": "4096x4096x4096 float16", "variant": "invented",
               "ms": 0.2, "baseline": "cuBLAS (torch.matmul)", "baseline_ms": 0.2, "ratio": 1.0,
               "ratio_low": 0.99, "ratio_high": 1.01, "value": 680.0, "unit": "TFLOP/s",
               "of_ceiling": 0.9})
    page.emit({"event": "data", "name": "first", "value": {"a": [1, 2]}})
    page.emit({"event": "data", "name": "second", "value": 3})
