/* Lookups in index objects of arbitrary bytes: a lookup must stay inside the object and end. */
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

        /* the bytes at every possible offset of a key, and a key that is not in the object */
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
