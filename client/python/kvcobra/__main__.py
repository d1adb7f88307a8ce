"""python -m kvcobra: the commands of the Python package. The command kvcobra, without Python, has the others."""
from __future__ import annotations

import argparse
import logging
import pathlib
import signal
import sys
from typing import Any, List, Optional

from . import Client, Error, calibrate, version
from ._calibrate import METRICS, OWN_SHARE, OWN_TOKENS, TEXT_TOKENS

CALIBRATE = """Run texts through a model of transformers and write the statistics that 'kvcobra solve' makes tables from. For a GGUF
file use 'kvcobra calibrate', which needs no Python."""


PROVE = """Show what the attention of a model is, as it is measured on a small copy of the model with random weights, and whether
kvcobra can serve it. Only the folder's config.json is read."""

LLAMA_PROXY = """Serve HTTP in front of a llama-server, and share the beginnings of its prompts with all programs of the host through kvcobrad.
Start llama-server with --slot-save-path FOLDER, and give clients this program's address. Whatever cannot be shared is computed by
llama-server, as without this program."""


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> None:
        print(f"libkvcobra {version()}")
        parser.exit()


def parser(program: str) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog=program, description="Compressed, shared key-value cache for language models.")
    p.add_argument("--version", action=_Version, nargs=0, help="print the version of libkvcobra")
    p.set_defaults(run=None)
    commands = p.add_subparsers(title="commands", metavar="COMMAND")
    c = commands.add_parser("calibrate", help="measure which directions of a model's cache matter", description=CALIBRATE)
    c.set_defaults(run=_calibrate)
    c.add_argument("model", metavar="MODEL-FOLDER", help="folder with config.json, safetensors and a tokeniser")
    c.add_argument("--text", metavar="FILE", action="append", default=[],
                   help="calibrate on this UTF-8 text, - is standard input; may be repeated (default: the model writes all text)")
    c.add_argument("--own-share", metavar="PERCENT", type=int, default=OWN_SHARE,
                   help="with --text: let the model write this share of all tokens, 0 to 90 (default %(default)s)")
    c.add_argument("-o", "--output", metavar="STATS", required=True, help="the statistics file to write")
    c.add_argument("--tokens", metavar="N", type=int,
                   help=f"tokens of the texts to use (default {TEXT_TOKENS}; without texts, to write: {OWN_TOKENS})")
    c.add_argument("--window", metavar="N", type=int, default=1024,
                   help="tokens of a window; no window sees another (default %(default)s)")
    c.add_argument("--metric", choices=METRICS,
                   help="weight of errors: by the output of attention; by gradients (fisher), which costs more and is better; or none "
                        "(default output, or fisher for a model that it does not describe)")
    c.add_argument("--seed", metavar="N", type=int, default=0, help="seed of all random choices (default %(default)s)")
    c.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32",
                   help="number type of the computation; the others need half the memory (default %(default)s)")
    c.add_argument("--model-id", metavar="DIGEST", help="the digest that tables are for (default: that of 'kvcobra model-id')")
    c.add_argument("-q", "--quiet", action="store_true", help="no progress line")
    c = commands.add_parser("prove", help="show what a model's attention is, and whether it is supported", description=PROVE)
    c.set_defaults(run=_prove)
    c.add_argument("model", metavar="MODEL-FOLDER", help="folder with a config.json that transformers knows")
    _add_llama_proxy(commands)
    return p


def _add_llama_proxy(commands: Any) -> None:
    c = commands.add_parser("llama-proxy", help="share the prompts of a llama-server", description=LLAMA_PROXY)
    c.set_defaults(run=_llama_proxy)
    c.add_argument("--server", metavar="URL", required=True, help="llama-server, such as http://127.0.0.1:8080")
    c.add_argument("--slots", metavar="FOLDER", required=True, help="the folder that llama-server got as --slot-save-path, of mode 0700")
    c.add_argument("--model", metavar="GGUF", required=True, help="the model that llama-server runs")
    c.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8081", help="where clients connect (default %(default)s)")
    c.add_argument("--socket", metavar="PATH", help="socket of kvcobrad (default: that of the library)")
    c.add_argument("--model-id", metavar="DIGEST", help="the digest that tables are for (default: that of 'kvcobra model-id')")
    c.add_argument("--pairs", choices=("interleaved", "half-split"),
                   help="dimensions that RoPE rotates together (default: by the model's architecture)")


def _prove(arguments: argparse.Namespace) -> int:
    from .hf import report

    if not (pathlib.Path(arguments.model) / "config.json").is_file():
        print(f"kvcobra: {arguments.model} is not a folder with a config.json", file=sys.stderr)
        return 1
    lines, reason = report(arguments.model)
    print("\n".join(lines + ([f"refused: {reason}"] if reason else [])))
    return 1 if reason else 0


def _llama_proxy(arguments: argparse.Namespace) -> int:
    from ._calibrate import folder_model_id
    from .llama import gguf, pairs_of
    from .llama.proxy import Proxy, Upstream, serve
    from .llama.sharing import Sharing
    from .llama.slots import Folder

    logging.basicConfig(level=logging.INFO, format="kvcobra: %(message)s", stream=sys.stderr)
    try:
        upstream = Upstream(arguments.server)
        pairs = arguments.pairs or pairs_of(gguf.architecture(arguments.model))
        model_id = arguments.model_id or folder_model_id(arguments.model)
        folder = Folder(arguments.slots)
    except (OSError, ValueError) as e:
        print(f"kvcobra: {e}", file=sys.stderr)
        return 1
    sharing = Sharing(lambda: Client(arguments.socket), model_id.split()[0], pairs, folder)
    try:
        server = serve(Proxy(upstream, sharing), arguments.listen)
    except ValueError as e:
        print(f"kvcobra: {e}", file=sys.stderr)
        return 1
    sharing.open()  # says so now if there is no kvcobrad or no table
    complaint = upstream.complaint()
    if complaint is not None:
        print(f"kvcobra: {complaint}", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(f"kvcobra: http://{arguments.listen} is {arguments.server} with shared prompts", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"kvcobra: {sharing.found_tokens} tokens were found, {sharing.published_tokens} published", file=sys.stderr)
    finally:
        server.server_close()
        sharing.close()
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    try:
        import torch
        import transformers
    except ImportError as e:
        print(f"kvcobra: the Python module {e.name} is missing: pip install kvcobra[transformers]", file=sys.stderr)
        return 1
    if not pathlib.Path(arguments.model, "config.json").is_file():
        print(f"kvcobra: {arguments.model} is not a folder with a config.json", file=sys.stderr)
        return 1
    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype),
                                                                   local_files_only=True)
    texts = [pathlib.Path("/dev/stdin" if text == "-" else text) for text in arguments.text]
    done = calibrate(model, texts, output=arguments.output, tokens=arguments.tokens,
                     window=arguments.window, metric=arguments.metric, seed=arguments.seed, progress=not arguments.quiet,
                     model_id=arguments.model_id, own_share=arguments.own_share)
    if done.repeated:
        print(f"kvcobra: {done.repeated} windows of the texts are left out: they repeat other windows", file=sys.stderr)
    print(f"{', '.join(done.outputs)}: {done.tokens} tokens of {done.windows} windows, {done.own_windows} of them written by the model, vectors of "
          f"{done.samples}, metric {done.metric}; {done.bytes / 2**20:.1f} MiB")
    return 0


def llama_proxy() -> int:
    """The program kvcobra-llama-proxy, which 'kvcobra llama-proxy' runs."""
    return main(["llama-proxy", *sys.argv[1:]], "kvcobra")


def main(arguments: Optional[List[str]] = None, program: str = "python -m kvcobra") -> int:
    """The exit status. Failures are one sentence on standard error."""
    p = parser(program)
    try:
        options = p.parse_args(arguments)
        if options.run is not None:
            return int(options.run(options))
        p.print_help()
        return 0
    except OSError as e:
        named = e.filename is not None and not isinstance(e, Error)
        print(f"kvcobra: {e.filename}: {e.strerror}" if named else f"kvcobra: {e.strerror}", file=sys.stderr)
    except (TypeError, ValueError) as e:
        print(f"kvcobra: {e}", file=sys.stderr)
    except KeyboardInterrupt:
        print("kvcobra: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
