"""The digest of the model that vLLM runs: the option model_id, or what 'kvcobra model-id' prints for the model's folder."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Optional

COMMAND = "kvcobra"
TIMEOUT_SECONDS = 1800  # the command reads all weights


def of_model(model: str, option: Optional[str]) -> str:
    """64 hexadecimal digits. @model: vLLM's name of the model. Raises ValueError with what to do."""
    if option is not None:
        return option
    advice = "set model_id in kv_connector_extra_config to the digest that 'kvcobra model-id FOLDER' prints"
    if not os.path.isdir(model):
        raise ValueError(f"KvCobraConnector: the model {model!r} is not a folder, so that its digest is unknown: {advice}")
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
