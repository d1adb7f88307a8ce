"""Models of transformers whose cache is compressed, for EleutherAI's lm-evaluation-harness. client/python/LM_EVAL.md says how it is
used.

    python -m kvcobra.lm_eval MODEL-FOLDER --table 3.table --tasks recall --include FOLDER

Runs every task twice, with the exact model and with the table, on the same questions.
"""
from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any, Dict, List, Optional, Tuple

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from .hf import KvCobraCache

DRAWS = 4000  # of the bootstrap


class UnfiniteError(ValueError):
    """A logit is not finite."""


def finite(logits: torch.Tensor) -> torch.Tensor:
    """The logits, or UnfiniteError."""
    if not torch.isfinite(logits).all():
        raise UnfiniteError("the model's logits are not all finite: its weights are damaged, or need a wider type (--dtype float32)")
    return logits


class ExactLM(HFLM):  # type: ignore[misc]
    """HFLM that refuses logits that are not finite: every comparison with NaN is false, so that answers would be scored at random."""

    def _model_call(self, inps: torch.Tensor, attn_mask: Any = None, labels: Any = None) -> torch.Tensor:
        return finite(super()._model_call(inps, attn_mask, labels))


class CompressedLM(HFLM):  # type: ignore[misc]
    """HFLM on the CPU whose queries read earlier chunks from codes: prompts and their continuations, each run from an empty cache.

    table: bytes or path of a table file. Other arguments are HFLM's; batches are of one text, since a cache has no padding on
    the right. The newest 64 to 127 tokens of a text are exact, as in the product: shorter texts are not compressed at all.
    """

    def __init__(self, *arguments: Any, table: Any, **named: Any) -> None:
        super().__init__(*arguments, **{**named, "device": "cpu", "batch_size": 1})
        self.cache = KvCobraCache.from_model(self.model, table=table, repeatable=True)

    def _model_call(self, inps: torch.Tensor, attn_mask: Any = None, labels: Any = None) -> torch.Tensor:
        self.cache.reset()
        with torch.no_grad():
            return finite(self.model(inps, past_key_values=self.cache, use_cache=True).logits)

    def _model_generate(self, context: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        self.cache.reset()
        return super()._model_generate(context, *arguments, **named, past_key_values=self.cache)


def paired(first: List[float], second: List[float], seed: int = 0) -> Tuple[float, float, float]:
    """Mean difference second - first, and its 95 % interval by a bootstrap over questions; 3 / n if no question differs."""
    differences = torch.tensor(second, dtype=torch.float64) - torch.tensor(first, dtype=torch.float64)
    n = len(differences)
    if not differences.any():
        return 0.0, -min(3 / n, 1.0), min(3 / n, 1.0)
    drawn = torch.randint(n, (DRAWS, n), generator=torch.Generator().manual_seed(seed))
    means = differences[drawn].mean(1).sort().values
    return differences.mean().item(), means[DRAWS // 40].item(), means[DRAWS - 1 - DRAWS // 40].item()


def _scores(results: Dict[str, Any], task: str, metric: str) -> List[float]:
    """The metric of each question, in the order of the questions."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [float(sample[metric]) for sample in samples]


def compare(folder: str, table: str, tasks: List[str], include: Optional[str] = None, limit: Optional[int] = None,
            dtype: str = "float32") -> List[Dict[str, Any]]:
    """A row for each task and metric: scores of the exact model and with the table, their difference and its interval."""
    manager = TaskManager(include_path=include)
    results = []
    for lm in (ExactLM(pretrained=folder, dtype=dtype, device="cpu", batch_size=1),
               CompressedLM(pretrained=folder, dtype=dtype, table=table)):
        results.append(lm_eval.simple_evaluate(lm, tasks=tasks, task_manager=manager, limit=limit, log_samples=True,
                                               bootstrap_iters=0))
    rows = []
    for task, samples in results[0]["samples"].items():
        for metric in samples[0].get("metrics", []):
            first, second = (_scores(r, task, metric) for r in results)
            difference, low, high = paired(first, second)
            rows.append({"task": task, "metric": metric, "questions": len(first), "exact": math.fsum(first) / len(first),
                         "compressed": math.fsum(second) / len(second), "difference": difference, "low": low, "high": high,
                         "lower": sum(b < a for a, b in zip(first, second)),
                         "higher": sum(b > a for a, b in zip(first, second))})
    return rows


def _print(rows: List[Dict[str, Any]]) -> None:
    width = max([len(row["task"]) for row in rows] + [4])
    print(f"{'task':{width}}  {'metric':8}  questions  exact  compressed  more   95 %             lower  higher")
    for row in rows:
        interval = f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"
        print(f"{row['task']:{width}}  {row['metric']:8}  {row['questions']:9}  {100 * row['exact']:5.1f}  "
              f"{100 * row['compressed']:10.1f}  {100 * row['difference']:+5.1f}  {interval:15}  {row['lower']:5}  {row['higher']:6}")


def main(arguments: Optional[List[str]] = None) -> int:
    p = argparse.ArgumentParser(prog="python -m kvcobra.lm_eval", description="Run tasks of lm-evaluation-harness with the exact "
                                "model and with a compressed cache, and compare the answers question by question.")
    p.add_argument("model", metavar="MODEL-FOLDER", help="folder with config.json, safetensors and a tokeniser")
    p.add_argument("--table", metavar="TABLE", required=True, help="an allocation table for the model")
    p.add_argument("--tasks", metavar="TASK,...", required=True, help="names of tasks")
    p.add_argument("--include", metavar="FOLDER", help="a folder with tasks of your own")
    p.add_argument("--limit", metavar="N", type=int, help="use only the first N questions of each task")
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32",
                   help="number type of the computation (default %(default)s)")
    p.add_argument("--json", action="store_true", help="print JSON")
    o = p.parse_args(arguments)
    try:
        rows = compare(o.model, o.table, o.tasks.split(","), o.include, o.limit, o.dtype)
    except UnfiniteError as e:
        print(f"kvcobra.lm_eval: {e}", file=sys.stderr)
        return 1
    if o.json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
