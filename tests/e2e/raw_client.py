"""raw_client.py LIBRARY_DIR PB_DIR SOCKET WORK_DIR: appends the chunks of WORK_DIR with client/python/raw_client.py, reads
them back, and writes the decoded vectors. The test makes the chunks and checks the result. KVC_RAW_DEVICE: the GPU, or none. Exit status 77:
no protobuf."""
import errno
import json
import os
import sys
import time

sys.path[:0] = sys.argv[1:3]
try:
    import google.protobuf  # noqa: F401
except ImportError:
    sys.exit(77)
import kvcobra_pb2 as pb
from raw_client import RawClient

socket_path, folder = sys.argv[3:5]
with open(os.path.join(folder, "scene.json"), encoding="utf-8") as f:
    scene = json.load(f)
with open(os.path.join(folder, "vectors"), "rb") as f:
    vectors = f.read()
geometry = pb.Geometry(**scene["geometry"])
salt = scene["salt"].encode()
tokens = scene["tokens"]
chunks = len(tokens) // 64
part = len(vectors) // (2 * chunks)  # K or V of a chunk



def patient(call, *arguments, **named):
    """Repeats the call while it fails with EAGAIN, for a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            return call(*arguments, **named)
        except OSError as e:
            if e.errno != errno.EAGAIN:
                raise
        time.sleep(0.005)
    sys.exit("kvcobrad answered EAGAIN for a minute")


client = patient(RawClient, socket_path, device=os.environ.get("KVC_RAW_DEVICE", ""))
client.open_model(geometry, bytes.fromhex(scene["model"]))


def refused(number, **arguments):
    try:
        client.append(**arguments)
    except OSError as e:
        assert e.errno == number and len(e.strerror) > 20, e
        return
    sys.exit(f"{arguments.keys()} was not refused")


parent, leases = b"", []
for c in range(chunks):
    k, v = (vectors[(2 * c + side) * part : (2 * c + side + 1) * part] for side in (0, 1))
    arguments = dict(tokens=tokens[64 * c : 64 * c + 64], parent=parent, position=64 * c, salt=salt)
    refused(errno.ENODATA, k=b"", v=b"", only_find=True, **arguments)
    reply = patient(client.append, k=k, v=v, **arguments)
    assert not reply.existed and len(reply.key) == 16 and reply.lease != 0, reply
    again = client.append(k=b"", v=b"", only_find=True, **arguments)
    assert again.existed and again.key == reply.key and again.page == reply.page and again.lease != reply.lease
    client.release(again.lease)
    parent = reply.key
    leases.append(reply.lease)

with open(os.path.join(folder, "decoded"), "wb") as out:
    for lease in leases:
        for side in (0, 1):
            for layer in range(scene["geometry"]["n_layers"]):
                out.write(patient(client.read, lease, layer, side))
client.release(leases[0])
try:
    client.read(leases[0], 0, 0)
    sys.exit("a released lease was read")
except OSError as e:
    assert e.errno == errno.ESTALE, e
