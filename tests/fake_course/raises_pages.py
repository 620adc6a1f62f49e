"""Raises pages: a compiler's error behind 20,000 characters of CUDA, in the order nvcc has them."""

SOURCE = "\n".join(f"  float value_{n} = A[{n}] * 2.0f;  // line {n}" for n in range(450))


def run(page):
    raise RuntimeError(
        f"Compilation error:\n#include <tl_templates/cuda/gemm.h>\n{SOURCE}\n"
        "/tmp/kernel.cu(77): error: identifier \"B_shared\" is undefined\n\n"
        "1 error detected in the compilation of \"/tmp/kernel.cu\".\n"
        "Command: nvcc -cubin"
    )
