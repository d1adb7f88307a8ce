/* Packets that the library reads from whoever listens on the socket. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted packs again, and the packed form means the same: packing it once more gives the same bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t once[WIRE_PACKET_BYTES_MAX], twice[WIRE_PACKET_BYTES_MAX];
    Kvcobra__Reply *m = NULL, *again = NULL;
    ssize_t n;

    if (wire_reply_unpack(data, size, &m) < 0)
        return 0;
    n = wire_reply_pack(m, once);
    wire_reply_free(m);
    if (n <= 0) /* nothing set, or a form that grows: single booleans that were packed in one run */
        return 0;
    if (wire_reply_unpack(once, (size_t) n, &again) < 0)
        abort();
    if (wire_reply_pack(again, twice) != n || memcmp(once, twice, (size_t) n) != 0)
        abort();
    wire_reply_free(again);
    return 0;
}
