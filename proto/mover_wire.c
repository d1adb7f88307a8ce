/* The mover's packets; see mover_wire.h. */
#include "proto/mover_wire.h"

int mover_request_unpack(const void *packet, size_t bytes, Kvcobra__MoverRequest **ret)
{
    return wire_unpack(&kvcobra__mover_request__descriptor, packet, bytes, (ProtobufCMessage **) ret);
}

int mover_reply_unpack(const void *packet, size_t bytes, Kvcobra__MoverReply **ret)
{
    return wire_unpack(&kvcobra__mover_reply__descriptor, packet, bytes, (ProtobufCMessage **) ret);
}

void mover_request_free(Kvcobra__MoverRequest *m)
{
    if (m)
        kvcobra__mover_request__free_unpacked(m, NULL);
}

void mover_reply_free(Kvcobra__MoverReply *m)
{
    if (m)
        kvcobra__mover_reply__free_unpacked(m, NULL);
}

ssize_t mover_request_pack(const Kvcobra__MoverRequest *m, void *buf)
{
    return wire_pack(&m->base, buf);
}

ssize_t mover_reply_pack(const Kvcobra__MoverReply *m, void *buf)
{
    return wire_pack(&m->base, buf);
}
