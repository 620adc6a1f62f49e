"""What the checks of several exercises share: random inputs, and rules for generated code."""

import torch

from sections.common import codegen
from sections.common.page import kilobytes


def draw(page, *shape: int, dtype=torch.float16, seed: int = 0):
    """Random elements, where this page's kernels run."""
    where = page.device.torch_device
    generator = torch.Generator(where).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=where).to(dtype)


def try_shapes(page, kernel, shapes: list[dict], case, inputs, reference, **bounds) -> None:
    """Check a kernel at several shapes, the first one that fails being the last.

    case, inputs  functions of a shape (a dict of the kernel's arguments): its name, the tensors
    bounds        as `page.check` takes them; a function is called with the shape
    """
    for shape, built in zip(shapes, page.build((kernel, shape) for shape in shapes), strict=True):
        tensors = inputs(shape)
        held = {name: bound(shape) if callable(bound) else bound for name, bound in bounds.items()}
        if not page.check(case(shape), built, tensors, reference(*tensors), **held):
            return


def judge(page, rules: list[tuple[str, object, bool]], code=None) -> bool:
    """Print rules as a table: what is asked, what was found, whether that will do.

    code  must also keep its values in registers; nvcc is asked only once all rules hold
    """
    if code and all(met for *_, met in rules):
        rules = rules + spills_nothing(page, code)
    page.table(["asked", "found", ""],
               [[asked, found, "yes" if met else "NO"] for asked, found, met in rules])
    for asked, found, met in rules:
        if not met:
            page.fail(f"asked: {asked}; found: {found}")
    return all(met for *_, met in rules)


def fits(code, limit: int, arch: str) -> tuple[str, str, bool]:
    """The rule that a block's shared memory fits an architecture's."""
    return (f"at most {kilobytes(limit)} of shared memory, what a block has on {arch}",
            kilobytes(code.shared_bytes), code.shared_bytes <= limit)


def reuse(schedule: dict, least: int) -> tuple[str, str, bool]:
    """The rule that an element of A or B, once fetched, serves for enough multiplications.

    For each k a block fetches block_M + block_N elements and multiplies block_M x block_N pairs of
    them, so on average an element takes part in twice that ratio.
    """
    block_M, block_N = schedule["block_M"], schedule["block_N"]
    times = 2 * block_M * block_N / (block_M + block_N)
    return (f"each fetched element used {least} times: 2 block_M block_N / (block_M + block_N)",
            f"{times:.0f}", times >= least)


def spills_nothing(page, code) -> list[tuple[str, str, bool]]:
    """The rule that registers hold everything; none where there is no nvcc to ask."""
    page.progress(f"asking nvcc about {code.name} for {code.arch}")
    found = codegen.resources(code)
    return [] if found is None else [
        ("no register spilled to memory, says nvcc",
         f"{found.registers} registers, {found.spill_bytes} bytes spilled", not found.spill_bytes)]


def copies_asynchronously(code) -> tuple[str, str, bool]:
    """The rule that tiles are fetched while others are multiplied."""
    names = [mark.name for mark in codegen.landmarks(code, only=("TMA load", "cp.async"))]
    return "copies that run in the background", ", ".join(names) or "none", bool(names)
