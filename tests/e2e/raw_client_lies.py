"""raw_client_lies.py LIBRARY_DIR PB_DIR: a daemon that lies to client/python/raw_client.py. Whatever it answers, a call ends
with a result, OSError or ValueError, as the file's documentation says. Exit status 77: no protobuf."""
import array
import fcntl
import os
import socket
import sys
import tempfile
import threading

sys.path[:0] = sys.argv[1:3]
try:
    import google.protobuf  # noqa: F401
except ImportError:
    sys.exit(77)
import kvcobra_pb2 as pb
import raw_client

GEOMETRY = pb.Geometry(n_layers=1, n_heads=1, n_kv_heads=1, d=8, n_rot=8, attn_scale=1.0, freq=[1.0] * 4)
LAYER_BYTES = 64 * 8 * 4
OBJECTS = (4096, 4096, 4096, 65536)  # control page, index, session page, arena


def memory_object(size, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
    fd = os.memfd_create("lies", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def truth(request):
    """The reply of an honest daemon: the message and its descriptors."""
    kind = request.WhichOneof("body")
    reply, fds = pb.Reply(id=request.id), []
    if kind == "hello":
        reply.hello.session_token = bytes(32)
        reply.hello.limits.lease_ms = 30000
    elif kind == "confirm":
        reply.confirm.resumed = False
        reply.confirm.SetInParent()
    elif kind == "open_model":
        fds = [memory_object(size) for size in OBJECTS]
        reply.open_model.model, reply.open_model.table_digest = 1, bytes(32)
        reply.open_model.session_bytes, reply.open_model.arena_bytes = OBJECTS[2:]
    elif kind == "append_raw":
        reply.append_raw.key, reply.append_raw.lease = bytes(16), 7
    elif kind == "read_raw":
        reply.read_raw.bytes = LAYER_BYTES
    return kind, reply, fds


def field(path, value):
    """A lie about one number or text: "open_model.arena_bytes"."""

    def lie(reply, fds):
        *owners, name = path.split(".")
        owner = reply
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, name, value)
        return reply.SerializeToString(), fds

    return lie


def packet(data):
    return lambda reply, fds: (data, fds)


def no_body(reply, fds):
    return pb.Reply(id=reply.id).SerializeToString(), fds


def other_body(reply, fds):
    return pb.Reply(id=reply.id, evict=pb.EvictReply()).SerializeToString(), fds


def cut(reply, fds):
    return reply.SerializeToString()[:-1] or b"\n", fds


def descriptors(make):
    def lie(reply, fds):
        raw_client.close_all(fds)
        return reply.SerializeToString(), make()

    return lie


def objects_of(session, arena, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
    return descriptors(lambda: [memory_object(size, seals) for size in (4096, 4096, session, arena)])


def files():
    read, write = os.pipe()
    return [read, write, os.open("/dev/zero", os.O_RDWR), os.open("/", os.O_RDONLY)]


STEPS = ("hello", "confirm", "open_model", "append_raw", "read_raw", "release", "bye")
LIES = [(step, lie) for step in STEPS for lie in (
    packet(b"\x0a\xff"), packet(b"\xff" * 100), no_body, other_body, cut, field("id", 2**64 - 1), field("err", -11),
    field("err", -2**31), field("err", 2**31 - 1))]
LIES += [("hello", field("hello.limits.lease_ms", value)) for value in (0, 1, 2**32 - 1)]
LIES += [("hello", field("hello.session_token", value)) for value in (b"", bytes(5000))]
LIES += [("open_model", field("open_model." + name, value)) for name in ("session_bytes", "arena_bytes")
         for value in (0, 1, 4095, 4097, 4099, 2**31, 2**63, 2**64 - 1)]
LIES += [("open_model", field("open_model.table_digest", value)) for value in (b"", bytes(31))]
LIES += [("open_model", lie) for lie in (descriptors(list), descriptors(files), objects_of(4100, 65536), objects_of(0, 0),
                                         objects_of(4096, 65536, 0), objects_of(4096, 64))]
LIES += [("append_raw", field("append_raw.key", b"")), ("append_raw", field("append_raw.lease", 2**64 - 1))]
LIES += [("read_raw", field("read_raw.bytes", value)) for value in (0, LAYER_BYTES - 1, 2**63, 2**64 - 1)]


def serve(listener, step, lie):
    """Serves one client; @lie changes the reply to the request @step."""
    client = listener.accept()[0]
    with client:
        while data := client.recv(1 << 20):
            kind, reply, fds = truth(pb.Request.FromString(data))
            data, fds = lie(reply, fds) if kind == step else (reply.SerializeToString(), fds)
            try:
                client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
            except OSError:
                break
            finally:
                raw_client.close_all(fds)


def use(path):
    with raw_client.RawClient(path) as client:
        client.open_model(GEOMETRY, bytes(32))
        lease = client.append(range(64), bytes(LAYER_BYTES), bytes(LAYER_BYTES)).lease
        assert len(client.read(lease, 0, 0)) == LAYER_BYTES
        client.release(lease)


def outcome(folder, step, lie):
    """The exception of a client; None: there was none."""
    path = os.path.join(folder, "lies.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=serve, args=(listener, step, lie))
        server.start()
        try:
            use(path)
            return None
        except BaseException as e:  # pylint: disable=broad-exception-caught
            return e
        finally:
            server.join()
            os.unlink(path)


def main():
    wrong = []
    threading.excepthook = lambda args: wrong.append(f"in a thread: {args.exc_value!r}")
    n_fds = len(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryDirectory() as folder:
        honest = outcome(folder, None, None)
        assert honest is None, honest
        for i, (step, lie) in enumerate(LIES):
            e = outcome(folder, step, lie)
            if e is not None and not isinstance(e, (OSError, ValueError)):
                wrong.append(f"lie {i} in {step}: {e!r}")
    if len(os.listdir("/proc/self/fd")) != n_fds:
        wrong.append("descriptors stay open")
    print(f"{len(LIES)} lies")
    return "\n".join(wrong) or 0


sys.exit(main())
