#!/usr/bin/env python3
"""Operates a daemon by its own messages: prints what each tenant has in the pool, and evicts pages.

    protoc --python_out=. --proto_path=$(pkg-config --variable=protodir kvcobra) kvcobra.proto
    python3 operate.py OPERATOR_SOCKET              the tenants
    python3 operate.py OPERATOR_SOCKET evict NAME   evicts the pages of a tenant that no process holds

kvcobra.Client.request() sends any request of kvcobra.proto; protoc makes the module with its messages.
"""
import sys

import kvcobra
import kvcobra_pb2 as pb


def call(client: kvcobra.Client, field: str, request):
    """Sends @request as @field of Request, and returns the message of the same number in Reply."""
    number = pb.Request.DESCRIPTOR.fields_by_name[field].number
    reply = pb.Reply.DESCRIPTOR.fields_by_number[number]
    body, _ = client.request(number, request.SerializeToString())
    return getattr(pb, reply.message_type.name).FromString(body)


def main() -> int:
    if len(sys.argv) not in (2, 4) or len(sys.argv) == 4 and sys.argv[2] != "evict":
        print("usage: operate.py OPERATOR_SOCKET [evict NAME]", file=sys.stderr)
        return 2
    with kvcobra.Client(sys.argv[1]) as client:
        if len(sys.argv) == 2:
            for tenant in call(client, "get_status", pb.GetStatus()).tenants:
                print(f"{tenant.name}: {tenant.pages} pages, {tenant.hits} hits, {tenant.misses} misses")
            return 0
        pages, more = 0, True
        while more:
            reply = call(client, "evict", pb.Evict(tenant=sys.argv[3]))
            pages, more = pages + reply.pages, reply.more
        print(f"evicted {pages} pages of {sys.argv[3]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
