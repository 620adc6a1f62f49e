"""README's table of ratios on an H200, from a results file: python -m sections.reference.table

Ratio: baseline time / kernel time, of the best kernel that a section has for the case.
"""

import sys

from sections.runner import results

GEMM, WIDE = "4096x4096x4096 float16", "16384x1024x512 float16"
BY_HAND = "by hand"  # what autotune calls the ladder's best, which it times beside its own choice
# Work, section, case, how the baselines begin (the strongest of them counts), the ratio to reach.
ROWS = (
    ("GEMM 4096^3", "gemm", GEMM, "cuBLAS", 1.00),
    ("GEMM 8192^3", "gemm", "8192x8192x8192 float16", "cuBLAS", 1.04),
    ("bias + exact GELU 4096^3", "fused_epilogue", f"{GEMM} erf", "torch eager", 1.25),
    ("bias + exact GELU 4096^3", "fused_epilogue", f"{GEMM} erf", "torch.compile", 1.10),
    ("bias + tanh GELU 4096^3", "fused_epilogue", f"{GEMM} tanh", "cuBLASLt", 1.00),
    ("bias + tanh GELU 16384x1024x512", "fused_epilogue", f"{WIDE} tanh", "cuBLASLt", 1.05),
    ("softmax 65536x4096", "softmax", "65536x4096 float16", "copy ceiling", 0.97),
    ("softmax 4096x32768", "softmax", "4096x32768 float16", "torch", 1.75),
    ("softmax 2048x131072", "softmax", "2048x131072 float16", "torch", 1.50),
    *((f"attention 4x16x4096, D={size}, {mask}", "flash_attention",
       f"4x16x4096x{size} float16 {mask}", "SDPA", target)
      for size, mask, target in ((128, "full", 1.05), (128, "causal", 1.02),
                                 (64, "full", 1.05), (64, "causal", 1.05))),
    ("autotune, GEMM 4096^3", "autotune", GEMM, BY_HAND, 1.00),
)


def table(found: dict) -> str:
    """The table of a run in Markdown, where the run was, and what sections say of their gaps."""
    lines = ["| work | against | ratio | spread | target | |", "|---|---|---|---|---|---|"]
    short = {}
    for work, section, case, baseline, target in ROWS:
        entry = strongest(found, section, case, baseline)
        if entry is None:
            lines.append(f"| {work} | {baseline} | - | - | {target:.2f} | not measured |")
            continue
        name, ratio, spread = entry
        gap = target - round(ratio, 2)
        lines.append(f"| {work} | {name} | {ratio:.2f} | {spread} | {target:.2f} | "
                     f"{f'{gap:.2f} short' if gap > 0.001 else 'reached'} |")
        short[section] = short.get(section, False) or gap > 0.001
    environment = found["environment"]
    versions = ", ".join(f"{name} {environment[name]}" for name in ("tilelang", "torch", "driver"))
    notes = [f"- `{section['name']}`: {section['note']}" for section in found["sections"]
             if short.get(section["name"]) and section["note"]]
    return "\n".join([f"One run on {results.place(found)} with {versions}:", "", *lines,
                      *([""] if notes else []), *notes])


def strongest(found: dict, section: str, case: str, baseline: str) -> tuple | None:
    """(baseline, ratio, spread) of the best kernel of a case against its strongest baseline."""
    entries = [entry for name, best in results.bests(found) for entry in best
               if name == section and entry["case"] == case]
    if baseline == BY_HAND:
        rivals = [entry["rivals"][BY_HAND] for entry in entries if BY_HAND in entry["rivals"]]
        return ("the ladder's best", rivals[0]["ratio"], "-") if rivals else None
    entry = min((entry for entry in entries if entry["baseline"].startswith(baseline)),
                key=lambda entry: entry["ratio"], default=None)
    return entry and (entry["baseline"].partition(" (")[0], entry["ratio"],
                      f"{entry['ratio_low']:.2f}-{entry['ratio_high']:.2f}")


if __name__ == "__main__":
    file = sys.argv[1] if len(sys.argv) > 1 else results.REFERENCE
    try:
        print(table(results.read(file)))
    except (OSError, ValueError) as error:
        sys.exit(f"{file} cannot be taken: {error}; needed: a file that --results FILE has written")
