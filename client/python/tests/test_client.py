"""Clients and models: errors, closing in any order, threads, fork, a missing library."""
import copy
import errno
import gc
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref

import kvcobra
import support
from kvcobra._library import library
from support import fill, geometry, vectors


class Client(support.Case):
    def test_no_daemon(self):
        path = os.path.join(self.folder, "none")
        with self.assertRaises(kvcobra.Error) as raised:
            kvcobra.Client(path)
        self.assertEqual(raised.exception.errno, errno.ENOENT)
        self.assertIn(path, raised.exception.strerror)
        self.assertIsInstance(raised.exception, OSError)

    def test_arguments(self):
        for kind, arguments in [(TypeError, dict(socket=True)), (ValueError, dict(socket=False, threads=0)),
                                (ValueError, dict(socket=False, threads=257)), (TypeError, dict(socket=False, timeout=1)),
                                (ValueError, dict(timeout=0)), (ValueError, dict(timeout=3601)), (ValueError, dict(timeout=float("nan")))]:
            with self.subTest(str(arguments)), self.assertRaises(kind):
                kvcobra.Client(**arguments)
        client, model = self.embedded()
        for kind, arguments in [(TypeError, {}), (ValueError, dict(model_id="00")), (TypeError, dict(model_id=1))]:
            with self.subTest(str(arguments)), self.assertRaises(kind):
                kvcobra.Model(client, **arguments)
        for kind, arguments in [(ValueError, dict(keys="between")), (ValueError, dict(pairs="none")), (TypeError, dict(salt="x")),
                                (ValueError, dict(table="00")), (kvcobra.Error, dict(salt=bytes(1025)))]:
            with self.subTest(str(arguments)), self.assertRaises(kind):
                kvcobra.Sequence(model, **arguments)

    def test_embedded(self):
        client, model = self.embedded()
        self.assertFalse(client.info.connected)
        self.assertEqual(model.info.revision, 0)
        self.assertEqual(len(model.info.table_digest), 32)
        self.assertEqual(model.geometry, geometry())
        with self.assertRaises(kvcobra.Error) as raised:
            kvcobra.Model(client, self.model_id, geometry())
        self.assertEqual(raised.exception.errno, errno.ENOTCONN)

    def test_wrong_table(self):
        client, _ = self.embedded()
        for table, number in [(b"nonsense", errno.EBADMSG), (self.table, errno.EINVAL)]:
            with self.assertRaises(kvcobra.Error) as raised:
                kvcobra.Model(client, bytes(32), geometry(), table=table)
            self.assertEqual(raised.exception.errno, number)
        with self.assertRaises(FileNotFoundError):
            kvcobra.Model(client, self.model_id, geometry(), table=self.table + ".none")

    def test_threads_of_the_library(self):
        with kvcobra.Client(False, threads=3) as client:
            model = kvcobra.Model(client, self.model_id, geometry(), table=self.table)
            with kvcobra.Sequence(model) as s, kvcobra.Sequence(self.embedded()[1]) as alone:
                q = vectors(5, 300, support.N_HEADS)
                for sequence in (s, alone):
                    fill(sequence, 300)
                self.assertLess(abs(s.attend(0, q) - alone.attend(0, q)).max(), 1e-4)

    def test_a_sequence_keeps_its_parents(self):
        client, model = self.embedded()
        sequence, seen = kvcobra.Sequence(model), weakref.ref(model)
        self._cleanups = [c for c in self._cleanups if c[0] != client.close]
        del client, model
        gc.collect()
        self.assertIsNotNone(seen())
        fill(sequence, 70)
        self.assertEqual(sequence.length, 70)
        del sequence
        gc.collect()
        self.assertIsNone(seen())

    def test_closing(self):
        client, model = self.embedded()
        sequence = kvcobra.Sequence(model)
        fill(sequence, 70)
        model.close()
        self.assertEqual(len(sequence), 70)  # a sequence outlives its model
        with self.assertRaisesRegex(ValueError, "model is closed"):
            kvcobra.Sequence(model)
        fork = sequence.fork()
        sequence.close()
        sequence.close()
        with self.assertRaisesRegex(ValueError, "sequence is closed"):
            sequence.append(0, vectors(1, 1), vectors(2, 1))
        client.close()
        client.close()
        for call in (lambda: fork.length, lambda: client.info, lambda: kvcobra.Model(client, self.model_id)):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()

    def test_cycles_of_garbage(self):
        """Finalizers of a cycle run in any order; a client frees what its models and sequences have not."""
        for _ in range(20):
            client = kvcobra.Client(False)
            model = kvcobra.Model(client, self.model_id, geometry(), table=self.table)
            sequence = kvcobra.Sequence(model)
            fill(sequence, 3)
            client.cycle, model.cycle, sequence.cycle = sequence, client, model
            del client, model, sequence
            gc.collect()

    def test_one_thread_at_a_time(self):
        client, model = self.embedded()
        sequence = kvcobra.Sequence(model)
        raised = []

        def other():
            try:
                sequence.usage
            except RuntimeError as e:
                raised.append(e)

        with client._busy:  # as if a call were running
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        self.assertIn("one client per thread", str(raised[0]))
        sequence.usage

    def test_garbage_is_freed_after_the_running_call(self):
        client, model = self.embedded()
        sequence = kvcobra.Sequence(model)
        with client._busy:
            del sequence
            gc.collect()
            self.assertEqual(len(client._garbage), 1)
        client.info
        self.assertEqual(len(client._garbage), 0)

    def test_fork(self):
        _, model = self.embedded()
        sequence = kvcobra.Sequence(model)
        pid = os.fork()
        if pid == 0:
            try:
                sequence.append(0, vectors(1, 1), vectors(2, 1))
                os._exit(1)
            except kvcobra.Error as e:
                os._exit(0 if e.errno == errno.ECHILD and "fork()" in e.strerror else 2)
            finally:
                os._exit(3)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        fill(sequence, 3)

    def test_copies_are_the_object_and_deep_copies_are_refused(self):
        client, model = self.embedded()
        sequence = kvcobra.Sequence(model)
        fill(sequence, 70)
        for owner in (client, model, sequence):
            other = copy.copy(owner)
            self.assertIs(other, owner)
            del other
            with self.assertRaisesRegex(TypeError, "pickled"):
                pickle.dumps(owner)
        gc.collect()
        self.assertEqual(sequence.usage.tokens, 70)  # nothing was freed
        for owner in (client, model):
            with self.assertRaisesRegex(TypeError, "copied deeply"):
                copy.deepcopy(owner)
        fork = copy.deepcopy(sequence)
        sequence.close()
        self.assertEqual((fork.length, fork.usage.tokens), (70, 70))

    def test_paths_are_those_of_the_system(self):
        name = os.path.join(os.fsencode(self.folder), b"caf\xe9")
        for path in (name, os.fsdecode(name), pathlib.Path(os.fsdecode(name))):
            with self.assertRaises(kvcobra.Error) as raised:
                kvcobra.Client(path)
            self.assertEqual(raised.exception.errno, errno.ENOENT)
        with self.assertRaisesRegex(ValueError, "NUL"):
            kvcobra.Client("socket\0x")
        with self.assertRaisesRegex(TypeError, "expected a path"):
            kvcobra.Client(7)

    def test_fetch_ms(self):
        _, model = self.embedded()
        for fetch_ms in (0, 8000):
            kvcobra.Sequence(model, fetch_ms=fetch_ms).close()
        for fetch_ms in (-1, 8001):
            with self.assertRaisesRegex(ValueError, "fetch_ms"):
                kvcobra.Sequence(model, fetch_ms=fetch_ms)
        kvcobra.Sequence(model, compute_tokens_per_s=25000).close()
        for rate in (-1, 1 << 32):
            with self.assertRaisesRegex(ValueError, "compute_tokens_per_s"):
                kvcobra.Sequence(model, compute_tokens_per_s=rate)

    def test_version(self):
        self.assertEqual(kvcobra.__version__, kvcobra.version())

    def test_library_beside_the_package(self):
        """A wheel has it there; the environment goes before it."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.dirname(kvcobra.__file__), os.path.join(folder, "kvcobra"), ignore=shutil.ignore_patterns("__pycache__"))
            os.makedirs(os.path.join(folder, "kvcobra", "_native", "lib"))
            os.symlink(os.environ["KVCOBRA_LIBRARY"], os.path.join(folder, "kvcobra", "_native", "lib", "libkvcobra.so.0"))
            environment = dict(os.environ, PYTHONPATH=folder)
            command = [sys.executable, "-c", "from kvcobra._library import library; print(library().path)"]
            given = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
            self.assertEqual(given, environment.pop("KVCOBRA_LIBRARY"))
            beside = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
            self.assertEqual(beside, os.path.join(folder, "kvcobra", "_native", "lib", "libkvcobra.so.0"))

    def test_missing_library(self):
        code = ("import kvcobra\ntry:\n    kvcobra.Client(False)\nexcept kvcobra.Error as e:\n    print(e.errno, e.strerror)")
        environment = dict(os.environ, KVCOBRA_LIBRARY="/nonexistent/libkvcobra.so.0")
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertTrue(done.stdout.startswith(f"{errno.ENOENT} "), done.stdout)
        for word in ("/nonexistent/libkvcobra.so.0", "KVCOBRA_LIBRARY", "libkvcobra0"):
            self.assertIn(word, done.stdout)

    def test_missing_function(self):
        with self.assertRaises(kvcobra.Error) as raised:
            library().function("kvc_seq_new_eval_of_another_version")
        self.assertEqual(raised.exception.errno, errno.ENOSYS)

    def test_module(self):
        for arguments, word in [(["--help"], "usage: python -m kvcobra"), (["--version"], "libkvcobra " + kvcobra.version())]:
            done = subprocess.run([sys.executable, "-m", "kvcobra", *arguments], capture_output=True, text=True, check=True)
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    support.main()
