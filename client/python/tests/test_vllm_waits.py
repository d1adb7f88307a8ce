"""How long vLLM's scheduler waits for KvCobraConnector while kvcobrad is there, killed, stopped, started again, while its cluster hangs,
and while an answer comes late, as from a slow disk. Without vLLM.

    test_vllm_waits.py [--seconds S]    measures for S seconds each, and prints a table

Without an option it is a test, whose limit leaves room for a busy machine: without a thread the scheduler would wait for seconds.
"""
import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import support
from vllm_standin import FakeDaemon, FakeLog, FakePool, one_list, output, request, until

import kvcobra
from kvcobra.vllm import geometry
from kvcobra.vllm.counters import Counters
from kvcobra.vllm.daemon import Daemon, Service
from kvcobra.vllm.lookups import Lookups
from kvcobra.vllm.scheduler import Scheduler

N_TOKENS, WAIT_MS, STEP_SECONDS = 512, 300, 0.002
TEST_SECONDS, LONGEST_SECONDS = 1.0, 0.2  # wait_ms is longer


def new_scheduler(lookups):
    return Scheduler(lookups, lambda r: b"", one_list(64), 64, True, True, False, Counters())


def row(seconds):
    times = sorted(seconds)
    return (f"{len(times)} calls, median {1e3 * statistics.median(times):.3f} ms, p99 {1e3 * times[len(times) * 99 // 100]:.3f} ms, longest "
            f"{1e3 * times[-1]:.2f} ms")


def machine(seconds):
    """What a wait of 1 ms takes, without anything of ours: a busy machine takes longer."""
    event, times, end = threading.Event(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.perf_counter()
        event.wait(0.001)
        times.append(time.perf_counter() - before)
        time.sleep(STEP_SECONDS)
    return row(times)


class Times:
    """Wall times of the scheduler's calls. One request after another, and steps of a busy engine."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.seconds = []
        self.n_found = self.n_nothing = self.number = 0

    def call(self, function, *arguments):
        before = time.perf_counter()
        result = function(*arguments)
        self.seconds.append(time.perf_counter() - before)
        return result

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.number += 1
            r = request(f"r{self.number}", N_TOKENS + 1)
            self.call(self.scheduler.arrived, r)
            while (n := self.call(self.scheduler.ask, r, 0)[0]) is None and time.monotonic() < end:
                self.call(self.scheduler.step, output())
                time.sleep(STEP_SECONDS)
            self.n_found += bool(n)
            self.n_nothing += n == 0
            self.call(self.scheduler.finished, r.request_id)
            self.call(self.scheduler.step, output())
            time.sleep(STEP_SECONDS)

    def row(self):
        return row(self.seconds) + f"; {self.n_found} requests found the prompt, {self.n_nothing} were computed"


class Waits(support.Case):
    seconds = TEST_SECONDS

    def measure(self, name, scheduler, during=None):
        times = Times(scheduler)
        times.run(self.seconds)
        if during is not None:
            times = Times(scheduler)
            during(times)
        print(f"{name}: {times.row()}", flush=True)
        self.assertLess(max(times.seconds), LONGEST_SECONDS)
        return times

    def scheduler(self, daemon):
        g = geometry.Geometry(**support.geometry()._asdict())
        of_engine = Daemon(daemon.socket, self.model_id.hex(), [(g, [geometry.Shard(0, support.N_KV_HEADS, 0)])], 4096, Service(FakeLog()))
        self.assertTrue(of_engine.open())
        s = new_scheduler(Lookups(of_engine, WAIT_MS, [0]))
        self.addCleanup(s.close)
        return s

    def publish(self, daemon):
        client, model = self.connected(daemon)
        sequence = kvcobra.Sequence(model, keys="after", publish_all=True)
        support.fill(sequence, N_TOKENS)
        self.assertEqual(sequence.commit(range(N_TOKENS)), N_TOKENS)
        client.close()

    def test_daemon(self):
        with support.Daemon("--pool-bytes=256M", "--arena-bytes=8M") as daemon:
            daemon.activate(self.table)
            self.publish(daemon)
            s = self.scheduler(daemon)
            self.assertGreater(self.measure("in memory", s).n_found, 0)

            def stop(times):
                daemon.process.send_signal(signal.SIGSTOP)
                times.run(self.seconds)
                daemon.process.send_signal(signal.SIGCONT)

            self.assertGreater(self.measure("stopped", s, stop).n_nothing, 0)
            self.assertGreater(self.measure("goes on", s, lambda times: times.run(self.seconds)).n_found, 0)

            def kill(times):
                daemon.kill()
                times.run(self.seconds)

            self.assertGreater(self.measure("killed", s, kill).n_nothing, 0)

            def start(times):
                daemon.start()
                times.run(self.seconds / 4)
                daemon.kill()
                times.run(self.seconds / 4)
                daemon.start()
                daemon.activate(self.table)
                times.run(self.seconds / 2)

            self.measure("started, killed, started", s, start)

    def test_late_answers(self):
        """The stand-in's answers come when the scheduler has given up."""
        pool = FakePool(N_TOKENS, held=True)
        s = new_scheduler(Lookups(FakeDaemon([pool]), WAIT_MS, [0]))
        self.addCleanup(s.close)
        self.measure("late answers", s)
        pool.answer()

    def test_cluster_hangs(self):
        redis, program = shutil.which("redis-server"), os.environ.get("KVC_CLUSTER")
        if not redis or not program:
            self.skipTest("there is no redis-server, or KVC_CLUSTER does not name kvcobra-cluster")
        folder = tempfile.mkdtemp(prefix="kvcobra-waits-")
        self.addCleanup(shutil.rmtree, folder)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = subprocess.Popen([redis, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no"],
                                  stdout=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        keys, config, link = (os.path.join(folder, name) for name in ("keys", "config", "link"))
        with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(f"index {'a' * 64}\nseal 1 {'b' * 64}\n")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"socket = {link}\nservers = 127.0.0.1:{port}\nstall-ms = 30000\nconnect-ms = 30000\n")
        with support.Daemon("--pool-bytes=256M", "--arena-bytes=8M", f"--key-file={keys}", f"--cluster-socket={link}",
                            f"--cluster-tenants=uid-{os.getuid()}", "--cluster-answer-ms=10000") as daemon:
            between = subprocess.Popen([program, "--config", config], stderr=subprocess.DEVNULL)
            self.addCleanup(between.wait)
            self.addCleanup(between.kill)
            daemon.activate(self.table)
            until(lambda: "ready, 1 of 1 nodes" in daemon.command("tier", "status"))
            self.publish(daemon)
            until(lambda: "written 8 pages" in daemon.command("tier", "status"))
            daemon.command("evict", "--yes")  # from now on a prompt is asked for in the cluster
            s = self.scheduler(daemon)
            self.assertGreater(self.measure("cluster", s).n_found, 0)
            daemon.command("evict", "--yes")
            server.send_signal(signal.SIGSTOP)
            self.assertGreater(self.measure("cluster hangs", s).n_nothing, 0)
            server.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    if "--seconds" in sys.argv or "--help" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--seconds", type=float, required=True)
        Waits.seconds = parser.parse_args().seconds
        print(f"the machine, waits of 1 ms: {machine(Waits.seconds)}")
        sys.argv[1:] = []
    support.main()
