"""docs/recipes/llama-server.md as it stands: two llama-servers of the package xllamacpp, their proxies and a kvcobrad, with a random model."""
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

import engines

PORTS = ("8080", "8081", "8082", "8083")  # of the page
TOKENS_LEFT = 64  # a match leaves less than a chunk to compute, and one token


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Recipe(unittest.TestCase):
    def script(self, folder, name, text):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, stat.S_IRWXU)

    def test_recipe(self):
        server = engines.need("KVC_LLAMA_SERVER")
        with open(engines.source("docs/recipes/llama-server.md"), encoding="utf-8") as file:
            script = "".join(line[7:] for line in file if line.startswith(" " * 7))
        for port, free in zip(PORTS, free_ports(len(PORTS))):
            self.assertIn(port, script)
            script = script.replace(port, str(free))
        with tempfile.TemporaryDirectory(prefix="kvcobra-recipe-") as folder:
            programs, runtime = os.path.join(folder, "bin"), os.path.join(folder, "run")
            os.mkdir(programs)
            os.mkdir(runtime, 0o700)
            subprocess.run([engines.need("KVC_TINY_MODEL"), os.path.join(folder, "model.gguf")], check=True)
            with open(engines.source("DESIGN.md"), encoding="utf-8") as design, open(os.path.join(folder, "prompts.txt"), "w", encoding="utf-8") as to:
                text = " ".join(design.read(6000).split())
                to.write(text[:1500] + "\n" + text[3000:4500] + "\n")
            for name, variable in (("kvcobra", "KVC_KVCOBRA"), ("kvcobrad", "KVC_KVCOBRAD")):
                os.symlink(engines.need(variable), os.path.join(programs, name))
            self.script(programs, "llama-server", f'exec {server} -B {engines.source("tests/engines/llama_server.py")} "$@"')
            self.script(programs, "kvcobra-llama-proxy", f'exec {sys.executable} -B -m kvcobra llama-proxy "$@"')
            self.script(programs, "kvcobra-bench-serve",
                        f'exec {sys.executable} -B -c "import sys; from kvcobra.bench_serve import main; sys.exit(main())" "$@"')
            environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": runtime,
                           "XDG_STATE_HOME": os.path.join(folder, "state"), "XDG_CONFIG_HOME": os.path.join(folder, "config")}
            log = os.path.join(folder, "log")
            # set -e ends the script at the first command that fails; servers get the signal last, so that proxies say what they found
            around = "set -e\ntrap 'kvcobra down; kill $(jobs -p); wait' EXIT\n"
            with open(log, "w", encoding="utf-8") as file:
                done = subprocess.run(["bash", "-c", around + script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=subprocess.STDOUT, timeout=engines.TIMEOUT_S, check=False)
            with open(log, encoding="utf-8", errors="replace") as file:
                text = file.read()
        self.assertEqual(done.returncode, 0, text[-6000:])
        rows = re.findall(r"^http://127\.0\.0\.1:\d+ +(\d+) +(\d+) +(\d+) ", text, re.MULTILINE)
        self.assertEqual([(requests, failed) for requests, failed, _ in rows], [("2", "0"), ("2", "0")], text[-6000:])
        found, published = (sorted(int(n) for n in numbers) for numbers in zip(*re.findall(r"kvcobra: (\d+) tokens were found, (\d+) published",
                                                                                           text)))
        self.assertEqual((found[0], published[0], found[1]), (0, 0, published[1]), text[-6000:])
        self.assertGreater(found[1], 512, text[-6000:])


if __name__ == "__main__":
    unittest.main()
