"""python -m kvcobra: the commands of the Python package. The command kvcobra, without Python, has the others."""
from __future__ import annotations

import argparse
import sys
from typing import List, Optional

from . import Error, version


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> None:
        print(f"libkvcobra {version()}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m kvcobra", description="Compressed, shared key-value cache for language models.")
    p.add_argument("--version", action=_Version, nargs=0, help="print the version of libkvcobra")
    return p


def main(arguments: Optional[List[str]] = None) -> int:
    p = parser()
    try:
        p.parse_args(arguments)
    except Error as e:
        print(f"kvcobra: {e.strerror}", file=sys.stderr)
        return 1
    p.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
