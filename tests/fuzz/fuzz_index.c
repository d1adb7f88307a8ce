/* Index objects as a client reads them: whatever they hold, a lookup stays inside and ends. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *object = aligned_alloc(64, (size + 63) / 64 * 64 + 64); /* mappings are aligned */
    struct index_reader r;

    if (!object)
        abort();
    memcpy(object, data, size);
    if (index_reader_init(&r, object, size, NULL) == 0) {
        struct chunk_key key = {{0}};

        /* keys that stand in the object, at every offset where one can, and one that does not */
        for (size_t at = 128; at + sizeof(key) <= size; at += 8) {
            struct index_hit hit;

            memcpy(&key, object + at, sizeof(key));
            (void) index_lookup(&r, &key, &hit);
        }
        memset(&key, 0xa5, sizeof(key));
        (void) index_lookup(&r, &key, &(struct index_hit){0});
    }
    free(object);
    return 0;
}
