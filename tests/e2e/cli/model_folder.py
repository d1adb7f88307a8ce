"""Tiny folders with a model for model_id.sh, and the digest by the rule of tools/README.md.

    model_folder.py make ROOT KIND...     writes folders ROOT/KIND
    model_folder.py digest ROOT KIND...   prints a line "KIND DIGEST" for each
"""
import hashlib
import json
import os
import struct
import sys

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.46.0", "_name_or_path": "somewhere/caf\u00e9",
    "use_cache": True, "text": {"dtype": "float32", "layer_types": ["full_attention", "sliding_attention"]},
}
TENSORS = {
    "model.embed_tokens.weight": ("F32", [3, 2], bytes(range(24))),
    "model.layers.0.k_proj.weight": ("BF16", [2, 2], bytes(range(100, 108))),
    "model.layers.0.v_proj.weight": ("BF16", [2, 2], bytes(range(200, 208))),
    "model.norm.weight": ("F16", [], b"\x00\x3c"),
    "empty": ("I64", [0, 4], b""),
    "quantised": ("F4", [2, 3], b"\x01\x02\x03"),
}


# ---- files ----------------------------------------------------------------------------------------------------

def header_of(tensors, metadata=None):
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return header


def write_safetensors(path, tensors, metadata=None, header=None, length=None, tail=b""):
    text = header if isinstance(header, bytes) else json.dumps(header or header_of(tensors, metadata)).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text)
        f.write(b"".join(data for _, _, data in tensors.values()) + tail)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)


def write_shards(folder, shards, weight_map=None):
    names = ["model-%05d-of-%05d.safetensors" % (i + 1, len(shards)) for i in range(len(shards))]
    for name, shard in zip(names, shards):
        write_safetensors(os.path.join(folder, name), shard, {"format": "pt"})
    if weight_map is None:
        weight_map = {t: name for name, shard in zip(names, shards) for t in shard}
    write_json(folder, "model.safetensors.index.json", {"metadata": {"total_size": 35}, "weight_map": weight_map})


def changed(**fields):
    return {**CONFIG, **fields}


def halves():
    names = list(TENSORS)
    return [{n: TENSORS[n] for n in names[1::2]}, {n: TENSORS[n] for n in names[0::2]}]


def with_header(**entries):
    """The usual header with some entries replaced."""
    header = header_of(TENSORS)
    for name, change in entries.items():
        header[name.replace("__", ".")] = change
    return header


def make(kind, folder):
    os.makedirs(folder)
    single = os.path.join(folder, "model.safetensors")
    embedding = header_of(TENSORS)["model.embed_tokens.weight"]
    first = "model-00001-of-00002.safetensors"
    config, tensors, options, shards, weight_map = CONFIG, TENSORS, {}, None, None
    whole_map = {t: "model-%05d-of-00002.safetensors" % (i + 1) for i, half in enumerate(halves()) for t in half}

    # the same model
    if kind == "metadata":
        options = {"metadata": {"format": "pt", "made by": "a test"}}
    elif kind == "order":
        tensors = dict(reversed(TENSORS.items()))
        config = dict(reversed(CONFIG.items()))
    elif kind == "left-out":
        config = changed(torch_dtype="float16", transformers_version="5.0", use_cache=False, eos_token_id=[2, 3],
                         text={"layer_types": ["full_attention", "sliding_attention"]})
    elif kind == "numbers":
        config = changed(rope_theta=10000, hidden_size=8.0)
    elif kind == "sharded":
        shards = halves()
    # other models
    elif kind == "weight":
        tensors = {**TENSORS, "model.norm.weight": ("F16", [], b"\x00\x3d")}
    elif kind == "shape":
        tensors = {**TENSORS, "model.embed_tokens.weight": ("F32", [2, 3], bytes(range(24)))}
    elif kind == "type":
        tensors = {**TENSORS, "model.norm.weight": ("BF16", [], b"\x00\x3c")}
    elif kind == "name":
        tensors = {(n if n != "empty" else "vacant"): t for n, t in TENSORS.items()}
    elif kind == "theta":
        config = changed(rope_theta=10001.0)
    elif kind == "null":
        config = {k: v for k, v in CONFIG.items() if k != "rope_scaling"}
    # refused
    elif kind == "bad-offsets":
        options = {"header": with_header(empty={"dtype": "I64", "shape": [0, 4], "data_offsets": [99, 99]})}
    elif kind == "bad-overlap":
        options = {"header": with_header(model__norm__weight={"dtype": "F16", "shape": [], "data_offsets": [38, 40]})}
    elif kind == "bad-hole":
        options = {"header": {n: e for n, e in header_of(TENSORS).items() if n != "model.norm.weight"}}
    elif kind == "bad-tail":
        options = {"tail": b"x"}
    elif kind == "bad-shape":
        options = {"header": with_header(model__norm__weight={"dtype": "F16", "shape": [2], "data_offsets": [40, 42]})}
    elif kind == "bad-type":
        options = {"header": with_header(model__norm__weight={"dtype": "Q7", "shape": [], "data_offsets": [40, 42]})}
    elif kind == "bad-negative":
        options = {"header": with_header(empty={"dtype": "I64", "shape": [-1], "data_offsets": [0, 0]})}
    elif kind == "bad-product":
        options = {"header": with_header(empty={"dtype": "I64", "shape": [2 ** 60, 2 ** 60], "data_offsets": [0, 0]})}
    elif kind == "bad-entry":
        options = {"header": with_header(empty=[1, 2])}
    elif kind == "bad-duplicate":
        options = {"header": b'{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, '
                             b'"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'}
    elif kind == "bad-json":
        options = {"header": b'{"a": '}
    elif kind == "bad-list":
        options = {"header": b"[1]"}
    elif kind == "bad-metadata":
        options = {"header": {"__metadata__": {"a": 1}, **header_of(TENSORS)}}
    elif kind == "bad-control":
        tensors = {**TENSORS, "\x1b[2J": ("U8", [1], b"x")}
    elif kind == "bad-escape":
        shards, weight_map = halves(), {**whole_map, "\x1b[2J": first}
    elif kind == "bad-length":
        options = {"length": 2 ** 63 + 5}
    elif kind == "bad-huge":
        options = {"length": 100000001}
    elif kind == "bad-traversal":
        shards, weight_map = halves(), {**whole_map, "empty": "../model-00001-of-00002.safetensors"}
    elif kind == "bad-absolute":
        shards, weight_map = halves(), {**whole_map, "empty": "/etc/model.safetensors"}
    elif kind == "bad-map":
        shards, weight_map = halves(), {**whole_map, "empty": 7}
    elif kind == "bad-missing":
        shards, weight_map = halves(), {**whole_map, "another": first}
    elif kind == "bad-unnamed":
        shards, weight_map = halves(), {t: n for t, n in whole_map.items() if t != "empty"}
    elif kind == "bad-absent":
        shards, weight_map = halves(), {**whole_map, "another": "model-00003-of-00002.safetensors"}
    elif kind == "bad-twice":
        shards, weight_map = [halves()[0], {**halves()[1], "empty": TENSORS["empty"],
                                            "model.norm.weight": TENSORS["model.norm.weight"],
                                            "quantised": TENSORS["quantised"]}], whole_map
    elif kind == "bad-many":
        shards = [{"t%d" % i: ("U8", [1], b"x")} for i in range(513)]
    elif kind == "bad-config":
        config = {"hello": 1}
    elif kind != "plain":
        sys.exit("no such folder: " + kind)

    assert embedding["data_offsets"] == [0, 24]
    write_json(folder, "config.json", config)
    if shards is None:
        write_safetensors(single, tensors, **options)
    else:
        write_shards(folder, shards, weight_map)


# ---- the rule of tools/README.md ------------------------------------------------------------------------------

LEFT_OUT = {
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "bos_token_id", "dtype", "eos_token_id",
    "initializer_range", "output_attentions", "output_hidden_states", "pad_token_id", "return_dict", "torch_dtype",
    "transformers_version", "use_cache",
}


def u64(n):
    return struct.pack("<Q", n)


def text(s):
    return u64(len(s.encode())) + s.encode()


def encode(value):
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, (int, float)):
        return b"d" + struct.pack("<d", float(value) or 0.0)
    if isinstance(value, str):
        return b"s" + text(value)
    if isinstance(value, list):
        return b"a" + u64(len(value)) + b"".join(map(encode, value))
    kept = sorted((k.encode(), k) for k in value if k not in LEFT_OUT)
    return b"o" + u64(len(kept)) + b"".join(text(k) + encode(value[k]) for _, k in kept)


def read_tensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name.encode(), entry["dtype"], entry["shape"], hashlib.sha256(data[begin:end]).digest()


def digest(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        h = hashlib.sha256(b"kvcobra safetensors model 1\n" + encode(json.load(f)))
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    tensors = sorted(t for name in files for t in read_tensors(os.path.join(folder, name)))
    h.update(u64(len(tensors)))
    for name, dtype, shape, sha in tensors:
        h.update(u64(len(name)) + name + text(dtype) + u64(len(shape)) + b"".join(map(u64, shape)) + sha)
    return h.hexdigest()


if __name__ == "__main__":
    for arg in sys.argv[3:]:
        where = os.path.join(sys.argv[2], arg)
        if sys.argv[1] == "make":
            make(arg, where)
        else:
            print(arg, digest(where))
