"""kvcobra.calibrate(): statistics of a transformers model, from which `kvcobra solve` makes tables."""
from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence as Items, Tuple

from . import _arrays, _texts
from ._client import Digest
from ._groups import group_digest
from ._openings import OPENINGS
from ._progress import Progress

if TYPE_CHECKING:
    from ._alloc import Statistics
    from .hf._recorder import Recorder

METRICS = ("output", "fisher", "mse")
N_SINK = 4
OWN_SHARE = 33  # percent
TEXT_TOKENS, OWN_TOKENS = 12288, 24576  # with texts, of these; without
SOURCES_MAX = 8  # that statistics keep apart


class Unsuitable(ValueError):
    """A metric does not describe the model or the windows of text; another one may."""


class Calibration(NamedTuple):
    """The files that were written: one, or one for each group of layers. tokens: counted, without the first 4 of each window; samples:
    tokens with stored vectors; bytes: of all files; own_windows: of those, windows that the model wrote; repeated: windows of texts
    that were left out, since they repeat others; metric: that of the statistics."""

    outputs: Tuple[str, ...]
    tokens: int
    windows: int
    samples: int
    bytes: int
    own_windows: int
    repeated: int
    metric: str


def _update(line: Progress, n_windows: int, window: int, share: float) -> None:
    line.update(int((n_windows + share) * window))


def calibrate(model: Any, texts: Items[_texts.Text], *, output: "str | os.PathLike[str]", tokenizer: Any = None,
              tokens: Optional[int] = None, window: int = 1024, metric: Optional[str] = None, seed: int = 0, progress: bool = True,
              model_id: Optional[Digest] = None, own_share: int = OWN_SHARE) -> Calibration:
    """Runs texts through a transformers model and writes statistics. `kvcobra solve` makes tables of any budget from them.

    model: a dense decoder of transformers on the CPU. texts: a str is a text, a pathlib.Path a file; none: the model writes all.
    output: the statistics file, which appears whole or not at all. A model whose layers have attention of several kinds is several
    groups, which get a file each: of "x.stats", "x.window-128.stats" and "x.full.stats". tokenizer: None: that of the model's folder.
    tokens: how many of the texts to use (None: 12288), or how many the model writes without texts (None: 24576).
    window: tokens that the model reads together, each window afresh. Windows that repeat earlier ones are left out.
    own_share: percent of all tokens that the model writes beside texts, 0 to 90, so that tables are good on other input too.
    metric: "output" weighs errors by their effect on the output of attention. "fisher" weighs them by gradients of the model's
    log-probabilities: for every model, as good with 12 000 tokens and more, and a backward pass. "mse" weighs all alike. None: "output", or "fisher" for a
    model that it does not describe; the result says which.
    progress: lines on standard error. model_id: the digest that `kvcobra model-id` prints and the
    table is for; None: that of the model's folder, which must be the local one that the model was loaded from.

    Raises ValueError if the model does not fit (the sentence says why), kvcobra.Error for failures of the library.
    """
    from ._alloc import Statistics  # the second library and torch are loaded when they are used

    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; expected one of {', '.join(METRICS)}")
    longest = getattr(model.config, "max_position_embeddings", None) or window
    if not N_SINK < window <= longest:
        raise ValueError(f"window is {window}; the model reads {N_SINK + 1} to {longest} tokens")
    if tokens is not None and tokens < 1:
        raise ValueError(f"tokens is {tokens}; expected at least 1")
    if not 0 <= own_share <= 90:
        raise ValueError(f"own_share is {own_share}; expected 0 to 90 percent")
    path = os.fspath(output)
    recorder = _recorder(model, metric, window)
    digest = _arrays.digest(model_id if model_id is not None else folder_model_id(model_folder(model)), "model_id")
    if tokenizer is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_folder(model), local_files_only=True)
    first = _texts.bos(tokenizer)
    sources, cuts, repeated = _read(texts, tokenizer, first, tokens or TEXT_TOKENS, window, 1 if own_share else len(OPENINGS))
    own, own_cuts = _write(model, tokenizer, first, cuts, sources,
                           _own_tokens(texts, cuts, tokens, own_share), window, seed, progress)
    name = os.path.basename(_name(model).rstrip("/")) or type(model).__name__
    groups = recorder.groups
    paths = tuple(_path_of(path, group.name, len(groups)) for group in groups)
    with contextlib.ExitStack() as stack:
        statistics = [stack.enter_context(Statistics(group.geometry, group_digest(digest, group.name, len(groups)), name, recorder.metric,
                                                     N_SINK, seed))
                      for group in groups]
        for s in statistics:
            _add_sources(s, sources + own, cuts + own_cuts, window)
        n_tokens = sum(len(cut.tokens) for cut in cuts + own_cuts)
        with Progress("calibrating", "tokens", n_tokens, progress) as line, recorder.recording(statistics):
            for i, cut in enumerate(cuts + own_cuts):
                source = (sources + own)[cut.source]
                for s in statistics:
                    s.begin_source(cut.name, source.by_model)
                recorder.run(cut.document, cut.tokens, functools.partial(_update, line, i, window))
        for s, output_path in zip(statistics, paths):
            s.save(output_path)
        infos = [s.info() for s in statistics]
    return Calibration(paths, infos[0].tokens, len(cuts) + len(own_cuts), infos[0].samples, sum(info.file_bytes for info in infos),
                       len(own_cuts), repeated, recorder.metric)


def _recorder(model: Any, metric: Optional[str], window: int) -> "Recorder":
    """Raises ValueError if the metric, or any of two if none is asked for, does not suit the model or the windows."""
    from .hf._recorder import Recorder

    try:
        recorder = Recorder(model, metric or METRICS[0])
        recorder.check_window(window)
    except Unsuitable:
        if metric is not None:
            raise
        recorder = Recorder(model, "fisher")
    return recorder


def _path_of(path: str, group: str, n_groups: int) -> str:
    """The file of a group's statistics."""
    if n_groups == 1:
        return path
    stem, ending = os.path.splitext(path)
    return f"{stem}.{group}{ending}"


def _read(texts: Items[_texts.Text], tokenizer: Any, first: List[int], tokens: int, window: int,
          pieces: int) -> Tuple[List[_texts.Source], List[_texts.Window], int]:
    """Sources and windows of texts, and the number of windows that were left out. pieces: of a text that is alone."""
    sources = [_texts.tokenise(text, i, tokenizer) for i, text in enumerate(texts)]
    repeated: Dict[int, int] = {}
    cuts = list(_texts.windows(sources, first, tokens, window, repeated, pieces))
    n_tokens = sum(len(s.tokens) for s in sources)
    if sources and not cuts and repeated:
        raise ValueError(f"the texts have {n_tokens} tokens, but repeat themselves: {sum(repeated.values())} windows of up to {window} "
                         "have nothing new, and the others are too few: give other text")
    if sources and not cuts:
        raise ValueError(f"the texts have {n_tokens} tokens, and a window needs {window}: give more text "
                         "or a smaller window")
    return sources, cuts, sum(repeated.values())


def _own_tokens(texts: Items[_texts.Text], cuts: List[_texts.Window], tokens: Optional[int], own_share: int) -> int:
    """How many tokens the model writes: a share p of all tokens is p / (1 - p) of those of the texts."""
    if not texts:
        return tokens or OWN_TOKENS
    return sum(len(cut.tokens) for cut in cuts) * own_share // (100 - own_share)


def _write(model: Any, tokenizer: Any, first: List[int], cuts: List[_texts.Window], sources: List[_texts.Source], n_tokens: int,
           window: int, seed: int, progress: bool) -> Tuple[List[_texts.Source], List[_texts.Window]]:
    """Sources and windows that the model writes beside @cuts."""
    from .hf._writer import write_windows

    n, size = _texts.own_windows(n_tokens, window)
    if n == 0:
        return [], []
    used = len({cut.source for cut in cuts})
    names = [name for name, _ in OPENINGS] if used + len(OPENINGS) <= SOURCES_MAX else [""]
    with Progress("writing text", "tokens", n * size, progress) as line:
        written = write_windows(model, tokenizer, first, n, size - len(first), _texts.own_seed(cuts, seed), line.update)
    return _texts.of_model(written, first, names, len(sources))


def _add_sources(statistics: "Statistics", sources: List[_texts.Source], cuts: List[_texts.Window], window: int) -> None:
    for i, source in enumerate(sources):
        own = [cut for cut in cuts if cut.source == i]
        statistics.add_source(source.digest, source.n_bytes, sum(len(cut.tokens) for cut in own), len(own), window,
                              source.by_model)


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or "")


def model_folder(model: Any) -> str:
    """The folder that @model was loaded from."""
    name = _name(model)
    if not os.path.isdir(name):
        raise ValueError("the model was not loaded from a local folder: pass model_id (`kvcobra model-id` prints it), and to calibrate also "
                         "tokenizer")
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
