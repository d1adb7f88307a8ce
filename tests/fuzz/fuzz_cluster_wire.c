/* Packets between kvcobrad and kvcobra-cluster: what is accepted encodes to the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cluster_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t again[CLUSTER_REQUEST_BYTES_MAX];
    struct cluster_request q;
    struct cluster_reply r;

    _Static_assert(CLUSTER_REQUEST_BYTES_MAX >= CLUSTER_REPLY_BYTES_MAX, "one buffer for both");
    if (cluster_request_decode(data, size, &q) == 0 &&
        (cluster_request_encode(&q, again) != size || memcmp(again, data, size) != 0))
        abort();
    if (cluster_reply_decode(data, size, &r) == 0 &&
        (cluster_reply_encode(&r, again) != size || memcmp(again, data, size) != 0))
        abort();
    return 0;
}
