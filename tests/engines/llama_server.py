#!/usr/bin/env python3
"""llama-server, from the Python package xllamacpp: takes those of its arguments that docs/recipes/llama-server.md and LLAMA.md name."""
import argparse
import threading

import xllamacpp

parser = argparse.ArgumentParser()
parser.add_argument("-m", dest="model", required=True)
parser.add_argument("--slot-save-path")
parser.add_argument("--port", type=int, default=8080)
parser.add_argument("--threads", type=int, default=2)
arguments = parser.parse_args()

parameters = xllamacpp.CommonParams()
parameters.model.path = arguments.model
parameters.slot_save_path = arguments.slot_save_path or ""
parameters.hostnames, parameters.port = ["127.0.0.1"], arguments.port
parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = 4096, 1, 0
parameters.cpuparams.n_threads = arguments.threads
server = xllamacpp.Server(parameters)
print(f"llama-server at {server.listening_address}", flush=True)
threading.Event().wait()
