"""Starts the programs of the wheel. A module of its own: the package takes a third of a second to import."""
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvcobra", "_native", "bin")


def _run(name: str) -> None:
    path = os.path.join(FOLDER, name)
    os.environ["KVCOBRA_PYTHON"] = sys.executable  # kvcobra runs the package's own commands with it
    scripts = os.path.dirname(os.path.abspath(sys.argv[0]))  # it finds programs of the package there, also if PATH lacks it
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + os.pathsep + scripts
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"{name}: {path}: {e.strerror}")


def kvcobra() -> None:
    _run("kvcobra")


def kvcobrad() -> None:
    _run("kvcobrad")
