"""Names and values of pages, and comparisons that say what they saw."""
import hashlib


def name(i):
    return hashlib.sha256(b"%d" % i).digest()[:16]


def key(n):
    return b"kvcobra:" + n.hex().encode()


def value(i, n_bytes=5000):
    return hashlib.sha256(b"value %d" % i).digest() * (n_bytes // 32)


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(map(str, what)) or "check failed")


def equal(a, b):
    check(a == b, repr(a)[:200], "is not", repr(b)[:200])
