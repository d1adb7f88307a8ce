"""A kvcobrad whose pool outlives it, for ladder.py: this process stores the descriptors that the daemon sends, as systemd does (sd_notify(3), FDSTORE)."""
import array
import fcntl
import os
import socket
import subprocess
import tempfile
import threading

from engines import Daemon

FIRST_LISTENED = 3  # sd_listen_fds(3)
FIRST_STORED = 200  # above what bash and Python use
MESSAGE_BYTES, FDS_PER_MESSAGE = 4096, 253


class KeptDaemon(Daemon):
    def __init__(self, *options):
        self._stored = []  # (name, descriptor)
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="kvcobra-store-")
        self._notify = os.path.join(self._folder.name, "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._notify)
        threading.Thread(target=self._serve, daemon=True).start()
        super().__init__("--keep-pool=yes", *options)

    def _serve(self):
        size = array.array("i").itemsize
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(FDS_PER_MESSAGE * size))
            fds = array.array("i")
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[:len(content) // size * size])
            lines = data.decode().split("\n")
            name = next((line.partition("=")[2] for line in lines if line.startswith("FDNAME=")), "stored")
            with self._lock:
                for fd in fds:
                    if "FDSTORE=1" in lines:
                        self._stored.append((name, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_STORED)))
                    os.close(fd)  # BARRIER=1: the daemon waits for it
                if "FDSTOREREMOVE=1" in lines:
                    for stored in [stored for stored in self._stored if stored[0] == name]:
                        os.close(stored[1])
                        self._stored.remove(stored)

    def forget(self):
        """The next daemon begins without the pool of this one, which has ended."""
        with self._lock:
            for _, fd in self._stored:
                os.close(fd)
            self._stored = []

    def launch(self, command, ready, log):
        with self._lock:
            moves = "".join(f"exec {FIRST_LISTENED + i}<&{fd} {fd}<&-; " for i, (_, fd) in enumerate(self._stored))
            environment = {**os.environ, "NOTIFY_SOCKET": self._notify, "LISTEN_FDS": str(len(self._stored)),
                           "LISTEN_FDNAMES": ":".join(name for name, _ in self._stored)}
            above = fcntl.fcntl(ready, fcntl.F_DUPFD_CLOEXEC, FIRST_STORED)
            command = [f"--ready-fd={above}" if word == f"--ready-fd={ready}" else word for word in command]
            try:
                return subprocess.Popen(["bash", "-c", moves + 'LISTEN_PID=$$ exec "$@"', "bash", *command], stderr=log, env=environment,
                                        pass_fds=(above, *(fd for _, fd in self._stored)))
            finally:
                os.close(above)
