"""The processes of ladder.py: each has one engine, and answers what the ladder asks over a pipe.

A request is {"tokens": [...], "salt": text}. An answer has `found`, the tokens that were not computed; `logprobs`, those of the
next token, over the whole vocabulary; and with transformers `pieces`: a digest of the outputs of each piece that was computed.
"""
import contextlib
import hashlib
import math
import multiprocessing
import os
import signal
import time

import engines  # noqa: F401 puts the tests of the Python package on the path
import kvcobra
from vllm_engine import ENVIRONMENT

CHUNK = 64
IDLE_SECONDS = 60
LOG = "KVC_LADDER_LOG"
CONTEXT = multiprocessing.get_context("forkserver")


def preload(with_vllm, log):
    """Imports the engines once: every worker is a fork of the process that did. @log: a file for what they print."""
    os.environ[LOG] = log
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    os.environ.setdefault("PYTHONHASHSEED", "0")  # vLLM names its own blocks by it
    modules = ["torch", "transformers", "kvcobra.hf"]
    CONTEXT.set_forkserver_preload(modules + ["vllm", "vllm.v1.worker.cpu_worker"] * with_vllm)


class Worker:
    """A process with one object of class @make; its methods are called by name."""

    def __init__(self, make, *arguments):
        self._pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, method, *arguments):
        self._pipe.send((method, arguments))

    def receive(self):
        try:
            good, result = self._pipe.recv()
        except EOFError:
            with open(os.environ[LOG], encoding="utf-8", errors="replace") as log:
                good, result = False, f"the process of the engine ended: {log.read()[-1500:]}"
        if not good:
            raise RuntimeError(result)
        return result

    def call(self, method, *arguments):
        self.send(method, *arguments)
        return self.receive()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.close()

    def close(self):
        self._pipe.close()
        self.process.join()


def _serve(pipe, make, arguments):
    log = os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):  # the ladder's are for the table
        os.dup2(log, standard)
    served = None
    with contextlib.suppress(EOFError):
        while True:
            method, values = pipe.recv()
            try:
                served = served or make(*arguments)
                pipe.send((True, getattr(served, method)(*values)))
            except Exception as e:
                pipe.send((False, f"{make.__name__}.{method}(): {type(e).__name__}: {e}"))
    if served is not None:
        served.close()
    os._exit(0)  # vLLM has threads that do not end


class Run:
    """A prompt that transformers computes in pieces which end where chunks end, so that a hit computes the pieces of a cold run."""

    def __init__(self, model, decoder, cache, tokens):
        import torch

        self._model, self._decoder, self.cache = model, decoder, cache
        self._ids = torch.tensor([tokens])
        cache.reset()
        self.at = self.found = cache.match(self._ids)
        self.pieces, self._hidden = {}, None

    @property
    def has_ended(self):
        return self.at >= self._ids.shape[1]

    def step(self):
        import torch

        end = min(self._ids.shape[1], (self.at // CHUNK + 1) * CHUNK)
        with torch.no_grad():
            self._hidden = self._decoder(input_ids=self._ids[:, self.at:end], past_key_values=self.cache, use_cache=True).last_hidden_state
        self.pieces[self.at] = hashlib.sha256(self._hidden.numpy().tobytes()).hexdigest()
        self.at = end

    def answer(self):
        return {"found": self.found, "pieces": self.pieces, "logprobs": logprobs(self._model, self._hidden)}


def logprobs(model, hidden):
    """Of the token behind the last one of @hidden, in binary64."""
    import torch

    with torch.no_grad():
        return model.lm_head(hidden[:, -1:])[0, -1].double().log_softmax(-1).numpy()


class Transformers:
    """@table: a path, for codes without a daemon. @repeatable: an answer does not depend on what was found. @alone: without table and daemon."""

    def __init__(self, folder, model_id, socket, table=None, repeatable=True, alone=False):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._client = kvcobra.Client(False if table or alone else socket)
        self._alone = alone
        self._options = {"model_id": model_id, "repeatable": repeatable, "table": table}
        self._caches = {}

    def _start(self, place, request):
        from kvcobra.hf import KvCobraCache, _geometry

        key = place, request.get("salt", "")
        if key not in self._caches or self._caches[key].is_plain != self._alone:
            self._caches[key] = KvCobraCache.from_model(self._model, self._client, salt=key[1].encode(), **self._options)
            assert self._caches[key].is_plain == self._alone, "kvcobrad is not there, or has no table for the model"
        return Run(self._model, _geometry.find_decoder(self._model), self._caches[key], request["tokens"])

    def ask(self, requests, cancelled=()):
        """Answers to requests that run side by side, a piece of each in turn. @cancelled: [(request, pieces)]: dropped after so many."""
        runs = [self._start(i, request) for i, request in enumerate(requests)]
        dropped = [(self._start(len(runs) + i, request), n) for i, (request, n) in enumerate(cancelled)]
        step = 0
        while not all(run.has_ended for run in runs) or any(n >= step for _, n in dropped):
            for run in runs:
                if not run.has_ended:
                    run.step()
            for run, n in dropped:
                if step < n and not run.has_ended:
                    run.step()
                elif step == n:
                    run.cache.reset()
            step += 1
        answers = [run.answer() for run in runs]
        for run in runs:
            run.cache.commit()
            run.cache.reset()
        return answers

    def prefixes(self, tokens, lengths):
        """Answers to the prefixes of @tokens of so many tokens, from one computation. Each ends in the chunk behind a full one."""
        import copy

        answers, run = {}, self._start(0, {"tokens": tokens})
        for length in sorted(lengths):
            while run.at + CHUNK < length:
                run.step()
            end = Run.__new__(Run)
            end.__dict__.update(run.__dict__, cache=copy.deepcopy(run.cache), pieces=dict(run.pieces), _ids=run._ids[:, :length])
            end.step()
            answers[length] = end.answer()
            end.cache.reset()
        run.cache.reset()
        return answers

    def close(self):
        self._client.close()


class Vllm:
    """@engine: arguments of vllm.LLM. @environment: of this process."""

    def __init__(self, engine, environment=()):
        os.environ.update(environment)
        import torch
        from kvcobra.vllm import plugin
        from vllm import LLM

        torch.cpu._init_amx()  # in a fork vLLM does not ask the kernel for it, and its attention ends with SIGILL
        plugin.register()
        self._llm = LLM(**engine)
        self._n_logprobs = engine["max_logprobs"]
        self._n_asked = 0
        self._llm.generate({"prompt_token_ids": [1, 2, 3]}, use_tqdm=False)

    def _add(self, request, n_tokens):
        from vllm import SamplingParams

        self._n_asked += 1
        text = {"prompt_token_ids": request["tokens"]}
        if request.get("salt"):
            text["cache_salt"] = request["salt"]
        self._llm.llm_engine.add_request(str(self._n_asked), text, SamplingParams(temperature=0, max_tokens=n_tokens, logprobs=self._n_logprobs
                                                                                   if n_tokens == 1 else None, ignore_eos=True))
        return str(self._n_asked)

    def ask(self, requests, cancelled=()):
        """Answers to requests that arrive together. @cancelled: [(request, steps)]: aborted after so many, also while they generate."""
        engine = self._llm.llm_engine
        dropped = {self._add(request, 100): n for request, n in cancelled}
        names = [self._add(request, 1) for request in requests]
        outputs, step = {}, 0
        while engine.has_unfinished_requests():
            for name in [name for name, n in dropped.items() if n == step]:
                engine.abort_request([name])
                del dropped[name]
            step += 1
            for output in engine.step():
                outputs[output.request_id] = output
        self._wait_for_publisher()
        return [self._answer(outputs[name]) for name in names]

    @staticmethod
    def _answer(output):
        import numpy

        step = output.outputs[0].logprobs[0]
        found = numpy.full(max(step) + 1, -math.inf)
        for token, entry in step.items():
            found[token] = entry.logprob
        return {"found": output.num_cached_tokens, "logprobs": found}

    @staticmethod
    def _wait_for_publisher():
        """Until what the prompts left to be encoded is published."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        publisher = get_kv_transfer_group()._worker._publisher if has_kv_transfer_group() else None
        end = time.monotonic() + IDLE_SECONDS
        while publisher is not None and publisher._used_bytes:
            if time.monotonic() > end:
                raise TimeoutError(f"a prompt was not published in {IDLE_SECONDS} s")
            time.sleep(0.005)

    def close(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        if has_kv_transfer_group():
            get_kv_transfer_group().shutdown()


class Codes:
    """What the codes of tables alone do to an answer: the prompt's exact keys and values are encoded and decoded in this process,
    without a daemon, a page or a cache of an engine."""

    def __init__(self, folder, tables):
        import torch
        from kvcobra.hf import _geometry
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._client = kvcobra.Client(False)
        self._groups = _geometry.cache_groups(self._model)
        self._models = []
        for group, table in zip(self._groups, tables):
            self._models.append(kvcobra.Model(self._client, None, table=table))

    def _run(self, tokens, cache):
        import torch

        with torch.no_grad():
            hidden = self._model.model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True).last_hidden_state
        return logprobs(self._model, hidden)

    def _decoded(self, exact, found):
        """The first @found positions of the layers of @exact, from codes."""
        import torch
        from transformers import DynamicCache

        cache, layers = DynamicCache(), {}
        for group, model in zip(self._groups, self._models):
            with kvcobra.Sequence(model, keys="after", pairs=group.kind.pairs, publish_all=True) as sequence:
                for i, layer in enumerate(group.layers):
                    k, v = (x[0].transpose(0, 1) for x in (exact.layers[layer].keys, exact.layers[layer].values))
                    sequence.append(i, k[:found] / group.kind.factor, v[:found])
                for i, layer in enumerate(group.layers):  # chunks are packed at the next append
                    k, v = (x[0].transpose(0, 1) for x in (exact.layers[layer].keys, exact.layers[layer].values))
                    sequence.append(i, k[found:] / group.kind.factor, v[found:])
                for i, layer in enumerate(group.layers):
                    k, v = (torch.from_numpy(sequence.read(i, side, 0, found)) for side in "kv")
                    layers[layer] = k * group.kind.factor, v
        for layer in sorted(layers):
            cache.update(*(x.transpose(0, 1)[None] for x in layers[layer]), layer)
        return cache

    def ask(self, tokens, found, other=None):
        """The exact answer; that behind codes of the first @found tokens; and that where the last chunk of these is another text's."""
        from transformers import DynamicCache

        exact = DynamicCache()
        wanted = self._run(tokens, exact)
        coded = self._decoded(exact, found)
        damaged = None
        if other is not None:
            foreign = DynamicCache()
            self._run(other, foreign)
            damaged = self._decoded(exact, found)
            for mine, theirs in zip(damaged.layers, foreign.layers):
                for side in ("keys", "values"):
                    getattr(mine, side)[:, :, found - CHUNK:] = getattr(theirs, side)[:, :, found - CHUNK:found]
            damaged = self._run(tokens[found:], damaged)
        return wanted, self._run(tokens[found:], coded), damaged

    def close(self):
        self._client.close()
