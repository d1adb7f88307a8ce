"""kvcobra: a compressed, shared key-value cache for language models.

Client connects to kvcobrad, Model binds it to a language model, Sequence stores and shares the keys and values of a text.
README.md has an example; kvcobra.h describes every call.
"""
from ._arrays import Tokens
from ._calibrate import Calibration, calibrate
from ._client import ActiveModel, Client, ClientInfo, Geometry
from ._errors import Error
from ._fetch import Fetch
from ._library import version
from ._model import Model, ModelFit, ModelInfo, exact_form
from ._sequence import Sequence, Usage, append_batch, attend_batch

__version__ = "0.1.0"

__all__ = ["ActiveModel", "Calibration", "Client", "ClientInfo", "Error", "Fetch", "Geometry", "Model", "ModelFit", "ModelInfo",
           "Sequence", "Tokens", "Usage", "append_batch", "attend_batch", "calibrate", "exact_form",
           "version"]
