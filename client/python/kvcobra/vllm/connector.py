"""KvCobraConnector: vLLM's interface for connectors (KVConnectorBase_V1), over the two sides in scheduler.py and worker.py.

vLLM makes one object with the role of the scheduler, and one per worker, in different processes. Each has clients of its own.
"""
from __future__ import annotations

import atexit
import logging
from dataclasses import fields
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
                                                                KVConnectorTransferResults, KVConnectorWorkerMetadata, SupportsHMA)
from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.worker_base import WorkerBase

from . import geometry, model_id, options, plugin, requirements, salt, weights
from .codes import Codes
from .counters import Counters
from .daemon import Daemon, Service
from .lookups import Lookups
from .metadata import Step
from .scheduler import Scheduler
from .stats import PromMetrics, Stats
from .worker import Worker

LOG = logging.getLogger("vllm.kvcobra")  # its handlers are vLLM's
SERVICE = Service(LOG)  # of this process: its connectors and threads have one line in the log together
KVConnectorMetadata.register(Step)


class Changed(KVConnectorWorkerMetadata):
    """From a worker to the scheduler: @method of the worker may have changed the weights."""

    def __init__(self, method: str) -> None:
        self.method = method

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        return self


class KvCobraConnector(KVConnectorBase_V1, SupportsHMA):
    """Shares prefixes with other processes through kvcobrad. client/python/VLLM.md describes its use."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if "kv_connector_block_state" not in {field.name for field in fields(SchedulerOutput)}:
            raise ValueError("KvCobraConnector: this version of vLLM does not name the blocks of a step's requests; 0.32.0 does")
        self._options = options.parse(self._kv_transfer_config.kv_connector_extra_config)
        self._attends = plugin.active()
        if requirements.set_policy(self._kv_transfer_config):
            SERVICE.note("vLLM computes the tokens of loads that fail: kv_load_failure_policy is set to 'recompute', since with vLLM's default "
                         "their requests would fail")
        requirements.check(vllm_config, kv_cache_config, self._options, self._attends)
        self._model_id = _model_id_of(vllm_config, self._options)
        self._groups = geometry.of_model(vllm_config.model_config)
        self._blocks = geometry.blocks_of(kv_cache_config.kv_cache_groups)
        self._async_load = self._options.async_load or len(self._blocks.tokens) > 1
        if self._async_load and not self._options.async_load:
            SERVICE.note(f"pages are loaded between steps (async_load): vLLM keeps {len(self._blocks.tokens)} lists of blocks for the model's "
                         "layers, and computes the tokens of a load that failed only if it was one between steps")
        self._counters = Counters()
        self._scheduler: Optional[Scheduler] = None
        self._worker: Optional[Worker] = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._new_scheduler()
        else:
            try:
                self._groups = geometry.with_ropes(self._groups, _ROPE_DICT.values())
            except ValueError as e:
                raise ValueError(f"KvCobraConnector: {e}") from None
            self._worker = self._new_worker()
            atexit.register(self.shutdown)  # what was computed last is published, also if vLLM ends without a word

    # ---- the sides ----

    def _daemon(self, shards: Callable[[int, int], List[geometry.Shard]], threads: int, gpu: Any = None,
                timeout: Optional[float] = None) -> Daemon:
        """@shards(KV heads, ranks): those to open."""
        n_ranks = self._vllm_config.parallel_config.tensor_parallel_size
        return Daemon(self._options.socket, self._model_id, [(g, shards(g.n_kv_heads, n_ranks)) for g in self._groups],
                      self._vllm_config.model_config.max_model_len, SERVICE, threads, gpu=gpu, timeout=timeout,
                      exact=None if self._attends else self._vllm_config.model_config.dtype)

    def _new_scheduler(self) -> Scheduler:
        daemon = self._daemon(geometry.shards, 1)
        if daemon.open():  # raises if the daemon's table does not fit the model; without a daemon the engine starts
            daemon.describe()
        adapters = salt.Adapters()
        lookups = Lookups(daemon, self._options.wait_ms, [self._blocks.window(g) for g in self._groups])
        return Scheduler(lookups, lambda request: salt.of_request(request, adapters), self._blocks,
                         self._options.waiting_leases, self._kv_transfer_config.is_kv_consumer,
                         self._kv_transfer_config.is_kv_producer, self._async_load, self._counters, self._attends)

    def _new_worker(self) -> Worker:
        rank = get_tensor_model_parallel_rank()
        owner = geometry.shard(self._groups[0].n_kv_heads, self._vllm_config.parallel_config.tensor_parallel_size, rank).owner
        on_gpu = self._vllm_config.device_config.device_type == "cuda"
        gpu = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

        def daemon(threads: int, timeout: Optional[float]) -> Daemon:
            return self._daemon(lambda n_kv_heads, n_ranks: [geometry.shard(n_kv_heads, n_ranks, rank)], threads, gpu, timeout)

        codes = None
        if self._attends:
            codes = Codes(daemon(self._options.threads, self._options.load_seconds), self._options.repeatable, self._counters)
        weights.WATCH.wrap(weights.classes_of(WorkerBase))
        return Worker(daemon, self._groups, self._blocks, self._options.threads, self._async_load,
                      self._kv_transfer_config.is_kv_producer and owner == rank, self._options.queue_mib << 20,
                      self._counters, codes, self._options.load_seconds, weights.WATCH.since_now())

    @property
    def codes(self) -> Optional[Codes]:
        """The sequences of attention on codes, for its backend."""
        return self._of_worker.codes

    @property
    def _of_scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "vLLM called a method of the scheduler on a worker's connector"
        return self._scheduler

    @property
    def _of_worker(self) -> Worker:
        assert self._worker is not None, "vLLM called a method of a worker on the scheduler's connector"
        return self._worker

    # ---- the scheduler's process ----

    def on_new_request(self, request: Any) -> None:
        self._of_scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        return self._of_scheduler.ask(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._of_scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        return self._of_scheduler.step(scheduler_output)

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._of_scheduler.finished(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Tuple[List[int], ...]) \
            -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._of_scheduler.finished(request.request_id)
        return False, None

    def update_connector_output(self, connector_output: Any) -> None:
        for request_id in connector_output.failed_recving:
            self._of_scheduler.load_failed(request_id)
        changed = connector_output.kv_connector_worker_meta
        if isinstance(changed, Changed):
            self._stop(f"{changed.method}() of vLLM's worker may have changed the weights that pages are named by")

    def _stop(self, reason: str) -> None:
        SERVICE.end(reason)
        self._of_scheduler.stop()

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a prompt that is not published is computed by its next reader

    # ---- a worker's process ----

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        layers = self._vllm_config.compilation_config.static_forward_context
        self._of_worker.register({name: layers[name] for name in kv_caches})

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._of_worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._of_worker.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """start_load_kv() returns when the loads of the step have ended."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Keys and values are copied where the attention backend gets them, not read from its cache."""

    def wait_for_save(self) -> None:
        self._of_worker.end_step()

    def get_transfer_results(self, finished_req_ids: Set[str]) -> KVConnectorTransferResults:
        finished = self._of_worker.finished_loads()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=self._of_worker.failed_requests())

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._of_worker.failed_blocks()

    def build_connector_worker_meta(self) -> Optional[KVConnectorWorkerMetadata]:
        method = self._of_worker.changed_by
        return Changed(method) if method else None

    # ---- both ----

    def reset_cache(self) -> Optional[bool]:
        """vLLM resets its caches, as it does when its weights were replaced. Pages are named by the weights of the start: from now on
        none is taken or published, until the engine is started again."""
        if self._attends:
            SERVICE.lost("attention on codes cannot reset its cache while requests use it: start the engine again for new weights")
            return False
        if self._scheduler is not None:
            self._stop("vLLM reset its caches, after which its weights may be others than those that pages are named by")
        return True

    def shutdown(self) -> None:
        atexit.unregister(self.shutdown)
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    def get_kv_connector_stats(self) -> Optional[Stats]:
        counts = self._counters.take()
        return Stats(data=counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Stats:
        return Stats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: List[str],
                           per_engine_labelvalues: Dict[int, List[object]]) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Dict[str, Any]) -> bool:
        return True  # a graph of the whole step would replay without the copies of keys and values


def _model_id_of(vllm_config: Any, chosen: options.Options) -> str:
    model = vllm_config.model_config
    return model_id.of_model(model.model, chosen.model_id, model.revision)


def bytes_per_state(vllm_config: Any) -> int:
    """Bytes of packed codes per token, layer and KV head, for the engine of @vllm_config. Raises ValueError without a table."""
    from .codes import bytes_per_state as of_codes

    chosen = options.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
    parallel = vllm_config.parallel_config
    groups = geometry.of_model(vllm_config.model_config)
    if len(groups) > 1:
        raise ValueError(f"attention on codes supports layers with attention of one kind, and the model's have {len(groups)} kinds")
    g = groups[0]
    shard = geometry.shard(g.n_kv_heads, parallel.tensor_parallel_size, get_tensor_model_parallel_rank())
    daemon = Daemon(chosen.socket, _model_id_of(vllm_config, chosen), [(g, [shard])],
                    vllm_config.model_config.max_model_len, SERVICE)
    try:
        if not daemon.open():
            raise ValueError("KVCOBRA_ATTENTION=1 needs a table: kvcobrad must run and have one for the model when the engine "
                             "starts")
        return of_codes(daemon.models()[0][0])
    finally:
        daemon.close()
