"""The device the tour runs on, the architecture it generates code for, and the limits of both."""

from dataclasses import dataclass
from functools import cached_property

# Shared memory one block may use, in bytes, and GPUs a reader may know.
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
SHARED_BYTES = {
    "sm_75": 64 * 1024,
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_89": 99 * 1024,
    "sm_90a": 227 * 1024,
    "sm_100a": 227 * 1024,
    "sm_120a": 99 * 1024,
}
EXAMPLE_GPUS = {
    "sm_75": "T4, RTX 20",
    "sm_80": "A100",
    "sm_86": "A10, RTX 30",
    "sm_89": "L4, RTX 40",
    "sm_90a": "H100, H200",
    "sm_100a": "B200",
    "sm_120a": "RTX 50",
}
# Memory, in bytes, of the first GPU named above: another GPU's code path keeps to it. From sm_90a
# on code is tied to its own chips.
EXAMPLE_MEMORY = {"sm_75": 15e9, "sm_80": 40e9, "sm_86": 24e9, "sm_89": 24e9}
ARCHITECTURES = tuple(SHARED_BYTES)
REHEARSAL_ARCH = "sm_90a"  # the cheapest to lower, and the one with the most to see


def capability(arch: str) -> int:
    """The number in an architecture's name: 90 for "sm_90a"."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def arch_name(major: int, minor: int) -> str:
    """The architecture TileLang should generate for: from 9.0 on, the "a" variant is needed."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def full_arch(name: str) -> str:
    """An architecture's name as the compiler wants it: "sm_90" and "SM_90A" mean "sm_90a".

    Raises ValueError for one that the tour does not know.
    """
    lower = name.strip().lower()
    for known in ARCHITECTURES:
        if lower in (known, known.rstrip("a")):
            return known
    raise ValueError(f"{name}: no such architecture; one of: {', '.join(ARCHITECTURES)}")


def preset(table: dict, arch: str):
    """The entry of `table` for `arch`, or for the newest architecture in it that is not newer.

    A table names only the architectures where something changes: {"sm_75": ..., "sm_80": ...}.
    """
    fitting = [known for known in table if capability(known) <= capability(arch)]
    if not fitting:
        raise KeyError(f"no preset for {arch}; the oldest is {min(table, key=capability)}")
    return table[max(fitting, key=capability)]


class DeviceError(Exception):
    """The device that was asked for cannot be had; the message says what to type instead."""


@dataclass(frozen=True)
class Device:
    """Where kernels run and what they are generated for.

    mode          "gpu", "arch" (another GPU's code path on this GPU) or "rehearsal" (CPU)
    arch          the architecture whose CUDA is generated, e.g. "sm_90a"
    shared_bytes  shared memory one block may use there, in bytes
    gpu           the GPU's name, None in rehearsal
    gpu_arch      the GPU's own architecture, None in rehearsal
    multiprocessors  of the GPU, 0 in rehearsal
    memory_bytes  GPU memory that was free when the device was chosen, which other processes leave;
                  with another GPU's code path no more than that GPU has; 0 in rehearsal
    """

    mode: str
    arch: str
    shared_bytes: int
    gpu: str | None = None
    gpu_arch: str | None = None
    multiprocessors: int = 0
    memory_bytes: int = 0

    @property
    def is_gpu(self) -> bool:
        """True where kernels run on a GPU and can be timed."""
        return self.mode != "rehearsal"

    @property
    def torch_device(self) -> str:
        return "cuda" if self.is_gpu else "cpu"

    @cached_property
    def target(self) -> str | dict:
        """TileLang's compilation target for kernels that run here.

        For another architecture nvcc makes that one's PTX, and of it this GPU's machine code.
        """
        if self.mode == "rehearsal":
            return "c"
        if self.mode == "arch":
            return {"kind": "cuda", "arch": self.arch, "code": [self.gpu_arch.rstrip("a")]}
        return {"kind": "cuda", "arch": self.arch}

    def preset(self, table: dict):
        """The entry of `table` that fits this device's architecture (see `preset`)."""
        return preset(table, self.arch)


def select(device: str = "auto", arch: str | None = None) -> Device:
    """Choose mode and architecture from what torch sees and what was asked for.

    device  "auto", "cuda" or "cpu";  arch  an architecture's name or None for the GPU's own
    Raises DeviceError where the wish cannot be met.
    """
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        arch = arch or REHEARSAL_ARCH
        return Device("rehearsal", arch, SHARED_BYTES[arch])
    if not torch.cuda.is_available():
        raise DeviceError(
            "--device cuda, but torch sees no CUDA device; needed: a GPU that torch can use; "
            "type: python tilelang_tour.py --device cpu"
        )
    facts = torch.cuda.get_device_properties(0)
    own = arch_name(facts.major, facts.minor)
    if capability(own) < capability(ARCHITECTURES[0]):
        message = f"{facts.name} is {own}; needed: {ARCHITECTURES[0]} or newer"
        if device == "cuda":
            raise DeviceError(f"{message}; type: python tilelang_tour.py --device cpu")
        print(f"{message}: rehearsing on the CPU instead.", flush=True)
        return Device("rehearsal", arch or REHEARSAL_ARCH, SHARED_BYTES[arch or REHEARSAL_ARCH])
    target = arch or own
    if capability(target) > capability(own):
        fitting = [known for known in ARCHITECTURES if capability(known) <= capability(own)]
        raise DeviceError(
            f"--arch {target} is newer than this GPU ({facts.name}, {own}); "
            f"needed: one of {', '.join(fitting)}; type: python tilelang_tour.py --arch {own}"
        )
    if target != own and target.endswith("a"):
        raise DeviceError(
            f"--arch {target}: that code is tied to its own chips, not {facts.name} ({own}); "
            f"needed: the rehearsal to read it; "
            f"type: python tilelang_tour.py --device cpu --arch {target}"
        )
    limit, memory = facts.shared_memory_per_block_optin, free_memory(facts.name)
    if target != own:
        limit, memory = min(limit, SHARED_BYTES[target]), min(memory, int(EXAMPLE_MEMORY[target]))
    return Device(
        mode="gpu" if target == own else "arch",
        arch=target,
        shared_bytes=limit,
        gpu=facts.name,
        gpu_arch=own,
        multiprocessors=facts.multi_processor_count,
        memory_bytes=memory,
    )


def free_memory(gpu: str) -> int:
    """Bytes of GPU memory that are free now, this process' own CUDA context not among them.

    Raises DeviceError where not even a context can be made: other processes fill the memory.
    """
    import torch

    try:
        return torch.cuda.mem_get_info(0)[0]
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:60]
        raise DeviceError(
            f"{gpu} cannot be used: {reason}; needed: a GPU with free memory; "
            "type: nvidia-smi, to see which processes fill it"
        ) from None
