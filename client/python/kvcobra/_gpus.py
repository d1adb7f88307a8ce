"""GPUs and streams as callers name them. torch is imported only for a name that it gave."""
from __future__ import annotations

import errno
from typing import Any, Optional, Tuple

from ._arrays import ANY_GPU
from ._errors import Error
from ._library import ffi


def find(gpu: Any) -> Tuple[int, str]:
    """The number of a GPU in torch, ANY_GPU if @gpu is a UUID, and its UUID."""
    if isinstance(gpu, str) and gpu.startswith(("GPU-", "MIG-")):
        return ANY_GPU, gpu
    import torch
    device = torch.device("cuda", gpu) if isinstance(gpu, int) else torch.device(gpu)
    if device.type != "cuda":
        raise ValueError(f"gpu is {gpu!r}; expected a CUDA device of torch, or a UUID as `nvidia-smi -L` prints it")
    try:
        number = torch.cuda.current_device() if device.index is None else device.index
        uuid = str(torch.cuda.get_device_properties(number).uuid)
    except (AssertionError, RuntimeError) as e:  # no driver, or no such GPU
        raise Error(errno.ENODEV, f"torch cannot use {device}: {e}") from None
    return number, uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def stream_address(stream: Any) -> Any:
    """The cudaStream_t of a torch.cuda.Stream or of a number; NULL is the default stream."""
    return ffi.cast("void *", getattr(stream, "cuda_stream", stream) or 0)


def host_codec(model: Any) -> Optional[str]:
    """Why the CPU encodes and decodes for a client on a GPU with the active table of @model. None: the GPU does, or the client has none."""
    if model.client.gpu is None:
        return None
    info = model.info
    if info.kernel.startswith("cuda "):
        return None
    return (f"no GPU kernel knows the codes of table {info.table_digest.hex()[:12]}: keys and values are copied, and encoded and decoded "
            "on the host")
