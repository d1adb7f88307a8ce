"""transformers: a compressed, shared cache with attention on its codes. client/python/TRANSFORMERS.md says how it is used.

    cache = kvcobra.hf.KvCobraCache.from_model(model, model_id="...")
    cache.match(input_ids)
    output = model.generate(input_ids, past_key_values=cache)
    cache.commit()
"""
from ._attention import NAME
from ._cache import KvCobraCache, KvCobraLayer
from ._geometry import model_geometry, report

__all__ = ["NAME", "KvCobraCache", "KvCobraLayer", "model_geometry", "report"]
