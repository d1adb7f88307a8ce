"""What ladder.py puts to the test: an engine with a model, and how its answers are judged."""
import re

import kvcobra
import numpy

from ladder_workers import CHUNK, Codes, Transformers, Vllm, Worker


class Subject:
    """has(): "daemon": its cache is kvcobrad's; "processes": several processes share it; "tables": an answer depends on the table; "alone":
    answers without the daemon can be judged; "evicts": its cache can be made small."""

    features = frozenset()
    options = ()  # of kvcobrad, in every row
    has_small_cache = False  # of an engine with a cache of its own
    sequence = {}  # options of the sequences that find what the engine published

    def __init__(self, model):
        self.model = model

    @property
    def tables(self):
        return self.model.tables

    def has(self, feature):
        return feature in self.features

    @property
    def small_pool(self):
        """Options of kvcobrad with room for a quarter of the prompts of the row "evicted"."""
        return self.model.small_pool

    def opened(self, client):
        """A kvcobra.Model of each group of layers, as the engine opens them."""
        return [kvcobra.Model(client, digest) for digest in self.model.digests]

    @staticmethod
    def whole(n):
        """Tokens that are found of a prompt of @n tokens that was asked before: of those that are computed at least one, and whole chunks."""
        return (n - 1) // CHUNK * CHUNK

    def use(self, tables):
        """Answers are judged by these tables from now on."""

    def prepare(self, text, lengths):
        """Beginnings of @text of these lengths will be judged."""


class OnTransformers(Subject):
    """KvCobraCache(repeatable=True). Every answer must be, to the bit, that of a process which has the table and no daemon: a digest of the
    last layer's output at every position that was computed, and the log-probabilities of the next token."""

    features = frozenset({"daemon", "processes", "tables", "evicts"})
    sequence = {"repeatable": True}

    def __init__(self, model):
        super().__init__(model)
        self.name = f"transformers, {model.name}"
        self.measure = "Every output must be the same to the bit as without a daemon; the difference is of log-probabilities."
        self._controls, self._known = {}, {}
        self.use(model.tables)

    @staticmethod
    def whole(n):
        return max(0, n - CHUNK) // CHUNK * CHUNK  # the newest chunk of tokens stays in the process

    def _table(self):
        if len(self._tables) == 1:
            return self._tables[0]
        return dict(zip(self.model.group_names, self._tables))

    def use(self, tables):
        self._tables = tables
        key = tuple(tables)
        if key not in self._controls:
            self._controls[key] = Worker(Transformers, self.model.folder, self.model.model_id, None, self._table())
            self._known[key] = {}

    @property
    def _control(self):
        return self._controls[tuple(self._tables)]

    def worker(self, socket):
        return Worker(Transformers, self.model.folder, self.model.model_id, socket)

    def again(self, request):
        with_another = Worker(Transformers, self.model.folder, self.model.model_id, None, self._table())
        try:
            return with_another.call("ask", [request])[0]
        finally:
            with_another.close()

    def prepare(self, text, lengths):
        known = self._known[tuple(self._tables)]
        for length, answer in self._control.call("prefixes", text, lengths).items():
            known[tuple(text[:length])] = answer

    def judge(self, request, answer):
        known, key = self._known[tuple(self._tables)], tuple(request["tokens"])
        if key not in known:
            known[key] = self._control.call("ask", [{"tokens": request["tokens"]}])[0]
        wanted = known[key]
        same = all(wanted["pieces"].get(at) == piece for at, piece in answer["pieces"].items())
        same &= set(answer["pieces"]) == set(range(answer["found"], len(request["tokens"]), CHUNK))
        difference = float(numpy.abs(wanted["logprobs"] - answer["logprobs"]).max())
        return not same or difference != 0, difference

    def close(self):
        for worker in self._controls.values():
            worker.close()


class OnTransformersExact(OnTransformers):
    """KvCobraCache without a table: pages have the bytes of the model's own keys and values. Every answer must be, to the bit, that of a process
    without a daemon that computes the same pieces."""

    features = frozenset({"daemon", "processes", "evicts"})
    options = ("--exact=yes",)
    sequence = {"keys": "after", "publish_all": True}
    whole = staticmethod(Subject.whole)
    WIDER = 11  # times the bytes of 3 bits per number, in binary32

    def __init__(self, model):
        super().__init__(model)
        self.name = f"transformers without a table, {model.name}"

    @property
    def tables(self):
        return []

    @property
    def small_pool(self):
        def wider(option):
            name, number, unit = re.fullmatch(r"(--[a-z-]+=)(\d+)([KMG])", option).groups()
            return f"{name}{int(number) * self.WIDER}{unit}"

        return [wider(option) for option in self.model.small_pool]

    def opened(self, client):
        return [kvcobra.Model(client, digest, geometry, exact=kvcobra.exact_form("float32", pairs=pairs))
                for digest, (geometry, pairs) in zip(self.model.digests, self.model.shapes)]

    def use(self, tables):
        self._tables = ()
        if () not in self._controls:
            self._controls[()], self._known[()] = self._alone(), {}

    def _alone(self):
        return Worker(Transformers, self.model.folder, self.model.model_id, None, None, False, True)

    def worker(self, socket):
        return Worker(Transformers, self.model.folder, self.model.model_id, socket, None, False)

    def again(self, request):
        other = self._alone()
        try:
            return other.call("ask", [request])[0]
        finally:
            other.close()

    def prepare(self, text, lengths):
        """A cache of the model's own does not go on in copies: each beginning is computed when it is asked for."""


def divergence(wanted, got):
    """KL(wanted || got) of the next token."""
    return float(numpy.sum(numpy.exp(wanted) * (wanted - got)))


class OnVllm(Subject):
    """vLLM with KvCobraConnector and without a prefix cache of its own. An answer is compared with that of plain vLLM for the prompt alone, by
    the KL of the next token. It may differ by what the engine's rounding does, measured with plain vLLM and requests side by side, and
    behind a hit also by what the codes do, measured without vLLM, daemon and pages (Codes)."""

    features = frozenset({"daemon", "processes", "alone", "evicts"})
    sequence = {"keys": "after", "publish_all": True}
    # The distances below are roots of KL, and the largest of as many others: another prompt's may be larger
    margin = 2.0
    # Of an engine that rounds alike in all of them: bfloat16 changes a logit of 8 by up to 2^-6, so that the KL, half the variance, is 4e-5
    rounding_min = 4e-5

    def __init__(self, model):
        super().__init__(model)
        self._known = {}
        self._tables = model.fine_tables()
        self._plain = Worker(Vllm, self._engine())
        self.rounding, self.codes, seen = self._bounds()
        self.name = f"{self.label}, {model.name}"
        self.measure = (f"The difference is the KL of the next token to plain vLLM's. It may be {self.rounding:.1e} where nothing was found and {self.codes:.1e} "
                        f"behind a hit. {seen} of {self.model.n_measured} answers were beyond the latter when the last chunk of the hit was another text's.")

    label = "vLLM and kvcobrad"

    @property
    def tables(self):
        return self._tables

    def _engine(self, **changes):
        return {"model": self.model.exact_folder, "skip_tokenizer_init": True, "dtype": "bfloat16", "enforce_eager": True, "block_size": self.model.block_tokens,
                "max_model_len": self.model.n_positions, "max_num_batched_tokens": 256, "max_num_seqs": 16, "max_logprobs": self.model.vocabulary,
                "enable_prefix_caching": False, "disable_log_stats": False, **changes}

    def _bounds(self):
        """What answers may differ by without a hit and behind one, and how many answers behind a wrong chunk are seen."""
        prompts = [self.model.prompt(n) for n in numpy.linspace(90, 460, self.model.n_measured).astype(int).tolist()]
        codes = Worker(Codes, self.model.folder, self._tables)
        rounding, coded, damaged = [], [], []
        together = self._plain.call("ask", [{"tokens": tokens} for tokens in prompts])
        for tokens, beside in zip(prompts, together):
            alone = self._control(tokens)
            rounding.append(divergence(alone, beside["logprobs"]))
            rounding += [divergence(alone, answer["logprobs"]) for answer in self._plain.call("ask", 4 * [{"tokens": tokens}])]
            exact, behind, wrong = codes.call("ask", tokens, self.whole(len(tokens)), self.model.prompt(len(tokens)))
            coded.append(divergence(exact, behind))
            damaged.append(divergence(exact, wrong))
        codes.close()
        largest = max(*rounding, self.rounding_min) ** 0.5
        bounds = [(self.margin * distance) ** 2 for distance in (largest, largest + max(coded) ** 0.5)]
        return *bounds, sum(kl > bounds[1] for kl in damaged)

    def _control(self, tokens):
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._plain.call("ask", [{"tokens": tokens}])[0]["logprobs"]
        return self._known[key]

    def worker(self, socket):
        return Worker(Vllm, self._engine(kv_transfer_config={
            "kv_connector": "KvCobraConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": socket, "model_id": self.model.model_id, "wait_ms": 10000}}))

    def again(self, request):
        return self._plain.call("ask", [request, {"tokens": self.model.prompt(150)}])[0]

    def judge(self, request, answer):
        difference = divergence(self._control(request["tokens"]), answer["logprobs"])
        return not difference <= (self.codes if answer["found"] else self.rounding), difference

    def close(self):
        self._plain.close()


class OnVllmAlone(OnVllm):
    """vLLM's own prefix cache, for comparison: it has no codes, and no second process takes what it has."""

    label = "vLLM's own prefix cache"
    features = frozenset({"evicts"})
    small = {"num_gpu_blocks_override": 24, "max_model_len": 1024}

    def _bounds(self):
        rounding, _, seen = super()._bounds()
        return rounding, rounding, seen

    def worker(self, _):
        return Worker(Vllm, self._engine(enable_prefix_caching=True, **(self.small if self.has_small_cache else {})))


SUBJECTS = {"transformers": OnTransformers, "transformers-exact": OnTransformersExact, "vllm": OnVllm, "vllm-own": OnVllmAlone}
