"""Turns kernel images into a C file: embed.py OUT.c NAME=IMAGE..."""
import sys

out, pairs = sys.argv[1], [a.split("=", 1) for a in sys.argv[2:]]
lines = ['#include "gpu/cuda/images.h"', ""]
for name, path in pairs:
    data = open(path, "rb").read()
    lines.append(f"static const unsigned char {name}[] __attribute__((aligned(16))) = {{")
    lines += ["    " + "".join(f"{b}," for b in data[i:i + 32]) for i in range(0, len(data), 32)]
    lines += ["};", f"const struct cuda_image cuda_image_{name} = {{ {name}, sizeof({name}) }};", ""]
open(out, "w").write("\n".join(lines))
