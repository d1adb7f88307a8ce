"""Whether two builds of libkvcobra compute the same bits: decoded vectors, which show every code, and attention.

    python3 bits.py PACKAGE TABLE LIBRARY LIBRARY    PACKAGE: the folder that has the Python package kvcobra

Appends random keys and values of the table's geometry, reads all of them back, and attends. Exit status 1: they differ.
"""
import hashlib
import os
import subprocess
import sys


def digest(table):
    import kvcobra
    import numpy
    random = numpy.random.default_rng(7)
    done = hashlib.sha256()
    with kvcobra.Client(False) as client:
        model = kvcobra.Model(client, table=table)
        g = model.geometry
        for keys in ("before", "after"):
            with kvcobra.Sequence(model, keys=keys) as sequence:
                for layer in range(g.n_layers):
                    for n in (389, 1, 1):  # a prompt, then tokens one at a time
                        k, v = (random.standard_normal((n, g.n_kv_heads, g.head_dim), numpy.float32) for _ in "kv")
                        q = random.standard_normal((n, g.n_heads, g.head_dim), numpy.float32)
                        sequence.append(layer, k, v)
                        done.update(numpy.ascontiguousarray(sequence.attend(layer, q)).tobytes())
                    for side in "kv":
                        done.update(sequence.read(layer, side, 0, 391).tobytes())
    return done.hexdigest()


def main(arguments):
    if len(arguments) == 1:
        print(digest(arguments[0]))
        return 0
    package, table, *libraries = arguments
    digests = [subprocess.run([sys.executable, "-B", os.path.abspath(__file__), table], check=True, capture_output=True, text=True,
                              env=dict(os.environ, PYTHONPATH=package, KVCOBRA_LIBRARY=library)).stdout for library in libraries]
    print(f"{digests[0].strip()} of {table}")
    return 0 if len(set(digests)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
