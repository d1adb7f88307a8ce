#!/usr/bin/env python3
"""Whether a version of vLLM has what KvCobraConnector uses of it, by reading its sources: nothing of it runs, and no GPU is needed.

    check_vllm.py WHEEL|FOLDER        a wheel that 'pip download --no-deps vllm' got, or the folder vllm of an environment

Prints one line per part, and exits with 1 if one is missing. docs/compatibility.md has the result for the newest version that PyPI had.
"""
import ast
import os
import re
import sys
import zipfile

CONNECTOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "python", "kvcobra", "vllm", "connector.py")
BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
FACTORY = "distributed/kv_transfer/kv_connector/factory.py"
# names that a module must define or import, by its file
NAMES = {
    BASE: ("KVConnectorBase_V1", "KVConnectorMetadata", "KVConnectorRole", "SupportsHMA"),
    "distributed/kv_transfer/kv_connector/v1/metrics.py": ("KVConnectorPromMetrics", "KVConnectorStats"),
    "distributed/parallel_state.py": ("get_tensor_model_parallel_rank",),
    "model_executor/models/utils.py": ("extract_layer_index",),
}
# members of classes: (file, class, member)
MEMBERS = (
    ("v1/core/sched/output.py", "SchedulerOutput", "kv_connector_block_state"),
    ("v1/core/sched/output.py", "SchedulerOutput", "scheduled_cached_reqs"),
    ("config/kv_transfer.py", "KVTransferConfig", "kv_load_failure_policy"),
    ("config/kv_transfer.py", "KVTransferConfig", "kv_connector_extra_config"),
)
# our own methods that are no part of vLLM's interface
OWN = {"__init__", "codes", "shutdown"}


class Sources:
    def __init__(self, path):
        self._wheel = zipfile.ZipFile(path) if os.path.isfile(path) else None
        self._folder = path
        found = re.search(r"-(\d+(?:\.\d+)+)", os.path.basename(path))
        self.version = found.group(1) if found else "of " + path

    def text(self, name):
        try:
            if self._wheel is not None:
                return self._wheel.read("vllm/" + name).decode()
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                return file.read()
        except (KeyError, OSError):
            return ""

    def tree(self, name):
        return ast.parse(self.text(name))


def defined(tree):
    """The names at the top of a module."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def class_of(tree, name):
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def members(node):
    names = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)} if node else {}
    fields = {n.target.id: n for n in (node.body if node else ()) if isinstance(n, ast.AnnAssign)}
    return {**names, **fields}


def parameters(function):
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args)]


def check_methods(sources):
    """Methods of the connector that vLLM calls: there, with the parameters that the connector takes."""
    with open(CONNECTOR, encoding="utf-8") as file:
        ours = members(class_of(ast.parse(file.read()), "KvCobraConnector"))
    tree = sources.tree(BASE)
    theirs = {**members(class_of(tree, "SupportsHMA")), **members(class_of(tree, "KVConnectorBase_V1"))}
    for name, method in ours.items():
        if name.startswith("_") or name in OWN:
            continue
        if name not in theirs:
            yield f"method {name}()", False
        else:
            given, taken = parameters(theirs[name]), parameters(method)
            yield f"method {name}({', '.join(given[1:])})", given == taken or method.args.kwarg is not None


def check(sources):
    for file, names in NAMES.items():
        there = defined(sources.tree(file))
        for name in names:
            yield f"{name} of {file}", name in there
    for file, class_name, member in MEMBERS:
        yield f"{class_name}.{member}", member in members(class_of(sources.tree(file), class_name))
    register = members(class_of(sources.tree(FACTORY), "KVConnectorFactory")).get("register_connector")
    yield "registering a connector by its name", bool(register) and parameters(register) == ["cls", "name", "module_path", "class_name"]
    scheduler = sources.text("v1/core/sched/scheduler.py")
    made, read = scheduler.find("KVConnectorFactory.create_connector("), scheduler.find(".kv_load_failure_policy")
    yield "the policy is read after the connector was made", 0 <= made < read
    yield "None is an answer of get_num_new_matched_tokens()", "if ext_tokens is None" in scheduler
    backends = [name for name in ("cpu_attn", "flash_attn", "flashinfer", "triton_attn")
                if "def do_kv_cache_update" in sources.text(f"v1/attention/backends/{name}.py")]
    yield f"do_kv_cache_update() of the backends {', '.join(backends)}", "cpu_attn" in backends and "flash_attn" in backends
    yield from check_methods(sources)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sources = Sources(sys.argv[1])
    results = list(check(sources))
    for what, good in results:
        print("ok     " if good else "MISSING", what)
    missing = sum(not good for _, good in results)
    print(f"vLLM {sources.version}: {len(results) - missing} of {len(results)} parts are there")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
