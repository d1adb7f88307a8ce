"""A client of kvcobrad in another language: the protocol and shared memory, no library of ours.

Needs the Python protobuf runtime and kvcobra_pb2.py, made by: protoc --python_out=. --proto_path=proto kvcobra.proto
The daemon encodes and decodes. Vectors are bytes: little-endian binary32, keys before RoPE. A refusal with EAGAIN (a GPU that
is being opened, memory of it that is being made) is to be asked again.
"""
import array
import mmap
import os
import socket

import kvcobra_pb2 as pb

PACKET_BYTES, FDS_MAX = 65536, 4


class RawClient:
    def __init__(self, path, name="raw_client.py", device=""):
        """device: "" keeps pages in the host's memory, the UUID of a GPU that kvcobrad is configured for in that one's."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.id = 0
        self.request("hello", pb.Hello(version_min=1, version_max=1, client_name=name, device=device))
        self.request("confirm", pb.Confirm())

    def request(self, name, body, timeout_ms=10000):
        """One request, one reply: (its body, descriptors). A refusal is an OSError with the daemon's words."""
        self.id += 1
        message = pb.Request(id=self.id, timeout_ms=timeout_ms)
        getattr(message, name).CopyFrom(body)
        self.socket.send(message.SerializeToString())
        data, control, flags, _ = self.socket.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(4 * FDS_MAX))
        fds = array.array("i")
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ConnectionError("kvcobrad closed the connection, or sent more than a packet")
        reply = pb.Reply.FromString(data)
        if reply.err:
            raise OSError(-reply.err, reply.message)
        return getattr(reply, reply.WhichOneof("body")) if reply.WhichOneof("body") else None, list(fds)

    def open_model(self, geometry, model_digest):
        """Also brings the arena, which is where vectors go in and come out. Returns the active table's digest."""
        reply, fds = self.request("open_model", pb.OpenModel(geometry=geometry, model_digest=model_digest))
        self.arena = mmap.mmap(fds[3], reply.arena_bytes)  # after control page, index and session page
        for fd in fds:
            os.close(fd)
        self.model, self.table = reply.model, reply.table_digest
        return self.table

    def append(self, tokens, k, v, parent=b"", position=0, salt=b"", only_find=False):
        """One chunk of 64 tokens; k, v: [layers][64][heads][d]. Returns key, lease, existed."""
        self.arena[: len(k)], self.arena[len(k) : len(k) + len(v)] = k, v
        body = pb.AppendRaw(model=self.model, table_digest=self.table, parent_key=parent, tokens=tokens, salt=salt,
                            first_position=position, type=pb.NUMBER_F32, k_offset=0, v_offset=len(k), only_find=only_find)
        return self.request("append_raw", body)[0]

    def read(self, lease, layer, side):
        """[64][heads][d] of one layer of a leased page; side 0 is K, 1 is V."""
        reply, _ = self.request("read_raw", pb.ReadRaw(lease=lease, layer=layer, side=side, type=pb.NUMBER_F32))
        return self.arena[: reply.bytes]

    def release(self, lease):
        self.request("release", pb.Release(lease=lease))
