"""Exercises: one file each, with its task, its solution and its check. Standard library only.

An exercise is a section like the others, a docstring and `run(page)`, but the kernel that `run`
checks is `page.yours`: the learner's file. That file is made from the exercise's own:

    # skeleton:
    # a line that the learner gets        ->  uncommented
    # solution:
    a line that solves the exercise       ->  left out
    # end
    # check: ...                          ->  from here on nothing is copied
"""

import ast
import re
from pathlib import Path

EXERCISES = {  # by the section that explains what they need
    "vector_add": ("add_tail", "row_stride"),
    "gemm": ("gemm_clear", "gemm_schedule"),
    "fused_epilogue": ("bias_index",),
    "softmax": ("row_mask", "rms_norm", "rescale"),
    "flash_attention": ("causal_mask", "score_scale"),
    "autotune": ("shared_memory",),
    "debugging": ("transpose", "wide_loads"),
    "architectures": ("fit_t4",),
}
ORDER = tuple(name for names in EXERCISES.values() for name in names)


def source(name: str) -> str:
    """The text of an exercise's own file, solution and check included."""
    return Path(__file__).with_name(f"{name}.py").read_text("utf-8")


def learners_file(name: str) -> str:
    """The name of the file that a learner works in."""
    return f"exercise_{name}.py"


def skeleton(text: str) -> str:
    """What a learner gets of an exercise's text: solution and check taken out."""
    text = text.partition("\n# check: ")[0].rstrip() + "\n"
    block = r"^ *# skeleton:\n(.*?)^ *# solution:\n.*?^ *# end\n"
    return re.sub(block, lambda found: _uncommented(found[1]), text, flags=re.DOTALL | re.MULTILINE)


def _uncommented(lines: str) -> str:
    return re.sub(r"^( *)# ?", r"\1", lines, flags=re.MULTILINE)


def hints(text: str) -> tuple[str, ...]:
    """An exercise's hints, from vague to plain, read from its text without importing it."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "HINTS":
            return tuple(" ".join(hint.split()) for hint in ast.literal_eval(statement.value))
    raise ValueError("no HINTS")
