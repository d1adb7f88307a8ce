"""terminal_check.py COLUMNS FILE [STATUS]: runs each line of FILE, a command, on a terminal of that width, and prints what it wrote
if a row is wider than the terminal, which would break it inside a word, or if its exit status is neither 0 nor 1 (or not STATUS)."""
import fcntl
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios


def run(columns, command):
    """The exit status of the command, and all text that it wrote to the terminal."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen(command, stdin=its, stdout=its, stderr=its)
    os.close(its)
    pieces = []
    while True:
        try:
            piece = os.read(mine, 65536)
        except OSError:  # EIO: the child closed the terminal
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(mine)
    return child.wait(), b"".join(pieces).decode().replace("\r\n", "\n")


def too_wide(columns, row):
    """A digest or a path may be longer than the row that it has alone."""
    return len(row) > columns and len(row.split()) > 1 and max(len(word) for word in row.split()) < columns - 20


def main(columns, path, wanted):
    n_wrong = 0
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert lines
    for line in lines:
        status, text = run(columns, shlex.split(line))
        rows = text.replace("\r\x1b[K", "\n").split("\n")
        wide = [row for row in rows if too_wide(columns, row)]
        if wide or status not in wanted or not text:
            n_wrong += 1
            print(f"{line}: exit status {status}, {len(wide)} of {len(rows)} rows are wider than {columns} columns:")
            print("\n".join(wide[:3] or rows[:3]))
    sys.exit(n_wrong > 0)


main(int(sys.argv[1]), sys.argv[2], [int(n) for n in sys.argv[3:]] or (0, 1))
