"""Measures: checks, measurements and ceilings with invented numbers, some of them not finite."""

import math


def run(page):
    for number, error in enumerate((0.0, 2.5e-4, math.inf, math.nan)):
        page.emit({"event": "check", "case": f"case {number}", "rel_error": error, "bound": 1e-3,
                   "passed": error < 1e-3})
    page.emit({"event": "ceilings", "copy_GBps": 4296.0, "matmul_TFLOPs": math.nan})
    page.emit({"event": "measurement", "case": "4096x4096x4096 float16", "variant": "invented",
               "ms": 0.2, "baseline": "cuBLAS (torch.matmul)", "baseline_ms": math.inf,
               "ratio": math.inf, "ratio_low": 0.99, "ratio_high": math.nan, "value": 680.0,
               "unit": "TFLOP/s", "of_ceiling": math.nan, "headline": True})
    page.lesson("numbers can be\n invented")
    page.limit("imagination")
