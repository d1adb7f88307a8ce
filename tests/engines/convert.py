#!/usr/bin/env python3
"""Converts the GGUF model of the demonstration to folders of safetensors, which transformers and vLLM load.

    convert.py MODEL.gguf FOLDER

Makes FOLDER/bf16 and FOLDER/f32, each with the tokeniser. A folder that exists is complete and stays: it gets its name when all
of its files are written. The numbers are those of the quantised file, so every engine computes nearly the same K and V.
"""
import os
import shutil
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(gguf):
    """The model in binary32, and its tokeniser."""
    folder, name = os.path.split(os.path.abspath(gguf))
    quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # the numbers are dequantised, but transformers saves no model that came from a GGUF file: copy them to another one
    config = quantised.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=name)


def save(model, tokenizer, folder, name):
    work = tempfile.mkdtemp(prefix=name + ".", dir=folder)
    try:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        os.chmod(work, 0o755)
        os.rename(work, os.path.join(folder, name))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    gguf, folder = arguments
    os.makedirs(folder, exist_ok=True)
    # float32 first: rounding to bfloat16 loses bits
    types = {"f32": torch.float32, "bf16": torch.bfloat16}
    missing = [name for name in types if not os.path.isdir(os.path.join(folder, name))]
    if missing:
        model, tokenizer = load(gguf)
        for name in missing:
            save(model.to(types[name]), tokenizer, folder, name)


if __name__ == "__main__":
    main(sys.argv[1:])
