/* The body of a fuzzer of packets; fuzz_request.c and others include it with their type of message. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An accepted message packs again, and unpacking and packing the result gives the same bytes. */
static inline int fuzz_message(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size)
{
    static uint8_t once[WIRE_PACKET_BYTES_MAX], twice[WIRE_PACKET_BYTES_MAX];
    ProtobufCMessage *m = NULL, *again = NULL;
    ssize_t n;

    if (wire_unpack(type, data, size, &m) < 0)
        return 0;
    n = wire_pack(m, once);
    protobuf_c_message_free_unpacked(m, NULL);
    if (n <= 0) /* no field set, or a message that grows: booleans packed in one run become single fields */
        return 0;
    if (wire_unpack(type, once, (size_t) n, &again) < 0)
        abort();
    if (wire_pack(again, twice) != n || memcmp(once, twice, (size_t) n) != 0)
        abort();
    protobuf_c_message_free_unpacked(again, NULL);
    return 0;
}
