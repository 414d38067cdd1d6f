"""What decides which kernels run, beside the version of PyTorch."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch


def machine(device: torch.device) -> str:
    """The GPU, or the CPU with a digest of its abilities."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    facts = dict(reversed([[p.strip() for p in line.partition(":")[::2]] for line in lines]))
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = " ".join(sorted(facts.get("flags", facts.get("Features", "")).split()))
    digest = hashlib.sha256(flags.encode()).hexdigest()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {digest[:8]}"
