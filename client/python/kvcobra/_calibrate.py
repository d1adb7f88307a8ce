"""kvcobra.calibrate(): statistics of a transformers model, from which `kvcobra solve` makes tables."""
from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence as Items

from . import _arrays, _texts
from ._client import Digest
from ._progress import Progress

if TYPE_CHECKING:
    from ._alloc import Statistics

METRICS = ("output", "mse")
N_SINK = 4


class Calibration(NamedTuple):
    """The file that was written. tokens: counted, without the first 4 of each window; samples: tokens with stored vectors."""

    output: str
    tokens: int
    windows: int
    samples: int
    bytes: int


def _update(line: Progress, n_windows: int, window: int, share: float) -> None:
    line.update(int((n_windows + share) * window))


def calibrate(model: Any, texts: Items[_texts.Text], *, output: "str | os.PathLike[str]", tokenizer: Any = None,
              tokens: int = 12288, window: int = 1024, metric: str = "output", seed: int = 0, progress: bool = True,
              model_id: Optional[Digest] = None) -> Calibration:
    """Runs texts through a transformers model and writes statistics. `kvcobra solve` makes tables of any budget from them.

    model: a dense decoder of transformers on the CPU. texts: a str is a text, a pathlib.Path a file.
    output: the statistics file, which appears whole or not at all. tokenizer: None: that of the model's folder.
    tokens: how many to use; window: tokens that the model reads together, each window afresh.
    metric: "output" weighs errors by their effect on the output of attention; "mse" is for models that "output" refuses.
    progress: a line on standard error, if that is a terminal. model_id: the digest that `kvcobra model-id` prints and the
    table is for; None: that of the model's folder, which must be the local one that the model was loaded from.

    Raises ValueError if the model does not fit (the sentence says why), kvcobra.Error for failures of the library.
    """
    from ._alloc import Statistics  # the second library and torch are loaded when they are used
    from .hf._recorder import Recorder

    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; expected one of {', '.join(METRICS)}")
    longest = getattr(model.config, "max_position_embeddings", None) or window
    if not N_SINK < window <= longest:
        raise ValueError(f"window is {window}; the model reads {N_SINK + 1} to {longest} tokens")
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; expected at least 1")
    path = os.fspath(output)
    recorder = Recorder(model, metric)
    digest = _arrays.digest(model_id if model_id is not None else folder_model_id(_folder(model)), "model_id")
    if tokenizer is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(_folder(model), local_files_only=True)
    sources = [_texts.tokenise(text, i, tokenizer) for i, text in enumerate(texts)]
    cuts = list(_texts.windows(sources, _texts.bos(tokenizer), tokens, window))
    if not cuts:
        raise ValueError(f"the texts have {sum(len(s.tokens) for s in sources)} tokens, and a window needs {window}: give more text "
                         "or a smaller window")
    name = os.path.basename(_name(model).rstrip("/")) or type(model).__name__
    with Statistics(recorder.geometry, digest, name, metric, N_SINK, seed) as statistics:
        _add_sources(statistics, sources, cuts, window)
        with Progress("calibrating", "tokens", len(cuts) * window, progress) as line, recorder.recording(statistics):
            for i, cut in enumerate(cuts):
                statistics.begin_source(sources[cut.source].digest)
                recorder.run(cut.document, cut.tokens, functools.partial(_update, line, i, window))
        statistics.save(path)
        info = statistics.info()
    return Calibration(path, info.tokens, len(cuts), info.samples, info.file_bytes)


def _add_sources(statistics: "Statistics", sources: List[_texts.Source], cuts: List[_texts.Window], window: int) -> None:
    for i, source in enumerate(sources):
        own = [cut for cut in cuts if cut.source == i]
        statistics.add_source(source.digest, source.n_bytes, sum(len(cut.tokens) for cut in own), len(own), window)


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or "")


def _folder(model: Any) -> str:
    name = _name(model)
    if not os.path.isdir(name):
        raise ValueError("the model was not loaded from a local folder: pass model_id (`kvcobra model-id` prints it) and tokenizer")
    return name


def folder_model_id(folder: str) -> str:
    """What `kvcobra model-id` prints for @folder."""
    program = shutil.which("kvcobra")
    if program is None:
        raise ValueError("model_id is missing, and the command kvcobra, which computes it, is not in PATH: install it, or pass "
                         "model_id")
    done = subprocess.run([program, "model-id", folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"kvcobra model-id {folder} failed")
    return done.stdout.strip()
