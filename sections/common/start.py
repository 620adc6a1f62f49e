"""What a process does once before it compiles anything: it tells TileLang where kernels run."""

import json
import os

from sections.common.device import Device


def prepare(device: Device) -> None:
    """Set TileLang's default target to `device`, quietly; install the rehearsal where it is one."""
    os.environ["TILELANG_PRINT_ON_COMPILATION"] = "0"
    # torch.compile compiles one function here: starting a process for each core costs seconds.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    target = device.target if isinstance(device.target, str) else json.dumps(device.target)
    os.environ["TILELANG_DEFAULT_TARGET"] = target
    if not device.is_gpu:
        from sections.common import rehearsal

        rehearsal.install()
