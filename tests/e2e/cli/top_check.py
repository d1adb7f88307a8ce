"""top_check.py KVCOBRA: 'kvcobra top' on a terminal ends by Ctrl-C and by SIGTERM, and leaves the terminal as it was. The BLAS
has threads, as on a user's machine: they must not take the signals away."""
import os
import pty
import re
import signal
import sys
import time

FIRST_SCREEN, LAST = b"q quit", b"\x1b[?25h\x1b[?1049l"


def start(kvcobra):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", OPENBLAS_NUM_THREADS="2")
        os.execv(kvcobra, ["kvcobra", "top", "--interval", "1"])
    return pid, terminal


def read_until(terminal, text):
    """What the terminal got, to its end if @text is None."""
    got = b""
    while text is None or text not in got:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the program is gone
            break
        if not piece:
            break
        got += piece
    return got


def ends(kvcobra, name, end):
    pid, terminal = start(kvcobra)
    drawn = FIRST_SCREEN in read_until(terminal, FIRST_SCREEN)
    time.sleep(0.2)  # it waits
    end(pid, terminal)
    rest = read_until(terminal, None)
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    if drawn and status == 0 and rest.endswith(LAST):
        return True
    print(f"{name}: drawn: {drawn}, wait status {status}, at the end {re.escape(rest[-80:])}")
    return False


good = [ends(sys.argv[1], "Ctrl-C", lambda pid, terminal: os.write(terminal, b"\x03")),
        ends(sys.argv[1], "SIGTERM", lambda pid, terminal: os.kill(pid, signal.SIGTERM))]
sys.exit(not all(good))
