"""What NxDI and NxD keep of an application for the whole process, where the next one that is
compiled or loaded finds it, of other settings or not."""

from __future__ import annotations

import sys
from typing import Any

# Groups of ranks, made where there are none; NxD's destroy_model_parallel leaves them alone.
_GROUPS = {
    "neuronx_distributed.parallel_layers.parallel_state": (
        "_SPECULATIVE_DRAFT_GROUP",
        "_KV_SHARED_GROUP",
    ),
    "neuronx_distributed_inference.modules.attention.attention_process_groups": (
        "_ATTENTION_TP_CP_GROUP",
        "_ATTENTION_CP_GROUP",
        "_ATTENTION_TP_DP_GROUP",
        "_ATTENTION_DP_GROUP",
    ),
}


def forget_others(application: Any) -> None:
    """Have an application compiled or loaded as the first of its process.

    Also forgotten is the prefix that reading a fused graph's weights gives the names of all weights
    of that class (`models/application_base.py`, checkpoint_loader_fn).
    """
    type(application)._FUSED_PREFIX = ""
    for name, groups in _GROUPS.items():
        module = sys.modules.get(name)
        for group in groups:
            if hasattr(module, group):
                setattr(module, group, None)
