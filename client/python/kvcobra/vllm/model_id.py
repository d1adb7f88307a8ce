"""The digest of the model that vLLM runs: the option model_id, or what 'kvcobra model-id' prints for the model's folder. A name of a
model hub is its folder in the cache on this machine."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Optional

COMMAND = "kvcobra"
TIMEOUT_SECONDS = 1800  # the command reads all weights


def _folder(model: str, revision: Optional[str]) -> Optional[str]:
    """The folder of @model on this machine. Downloads nothing."""
    if os.path.isdir(model):
        return model
    try:
        from huggingface_hub import snapshot_download
        return str(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # no such name, not in the cache, no such package: the reasons have many types
        return None


def of_model(name: str, option: Optional[str], revision: Optional[str] = None) -> str:
    """64 hexadecimal digits. @name, @revision: vLLM's of the model. Raises ValueError with what to do."""
    if option is not None:
        return option
    advice = "set model_id in kv_connector_extra_config to the digest that 'kvcobra model-id FOLDER' prints"
    model = _folder(name, revision)
    if model is None:
        raise ValueError(f"KvCobraConnector: the model {name!r} is neither a folder nor a name whose files are in the hub's cache on this "
                         f"machine, so that its digest is unknown: {advice}")
    command = shutil.which(COMMAND)
    if command is None:
        raise ValueError(f"KvCobraConnector: the command {COMMAND!r}, which computes the digest of {model!r}, is not installed: "
                         f"{advice}")
    try:
        result = subprocess.run([command, "model-id", model], capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
                                stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ValueError(f"KvCobraConnector: '{command} model-id {model}' failed ({e}): {advice}") from None
    digest = re.match(r"[0-9a-f]{64}\b", result.stdout)
    if result.returncode != 0 or digest is None:
        raise ValueError(f"KvCobraConnector: '{command} model-id {model}' failed: {result.stderr.strip()[:500]}: {advice}")
    return digest.group()
