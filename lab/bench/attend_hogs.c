/* See attend_hogs.h. */
#include "lab/bench/attend_hogs.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* of a thread: more than a core's share of the largest caches */
#define HOG_BYTES ((size_t) 128 << 20)
#define HOG_LINE 64

struct attend_hogs {
    atomic_bool ends;
    size_t n;
    struct hog {
        pthread_t thread;
        uint8_t *bytes;
        struct attend_hogs *all;
    } hogs[];
};

static void *attend_hogs_work(void *arg)
{
    struct hog *h = arg;
    volatile uint64_t sink; /* the loads below have a result, so the compiler keeps them */

    while (!atomic_load_explicit(&h->all->ends, memory_order_relaxed)) {
        uint64_t sum = 0, word;

        for (size_t at = 0; at < HOG_BYTES; at += HOG_LINE) {
            memcpy(&word, h->bytes + at, sizeof(word));
            sum += word;
        }
        sink = sum;
    }

    (void) sink;
    return NULL;
}

int attend_hogs_new(size_t n, struct attend_hogs **ret)
{
    struct attend_hogs *made = calloc(1, sizeof(*made) + n * sizeof(made->hogs[0]));
    int r = made ? 0 : ENOMEM;

    for (size_t i = 0; r == 0 && i < n; i++) {
        struct hog *h = &made->hogs[i];

        *h = (struct hog){.bytes = malloc(HOG_BYTES), .all = made};
        if (!h->bytes) {
            r = ENOMEM;
            break;
        }
        memset(h->bytes, 1, HOG_BYTES); /* pages of zeros would all be one page in the cache */
        r = pthread_create(&h->thread, NULL, attend_hogs_work, h);
        if (r == 0)
            made->n++;
        else
            free(h->bytes);
    }
    if (r != 0) {
        made = attend_hogs_free(made);
        return -r;
    }

    *ret = made;
    return 0;
}

struct attend_hogs *attend_hogs_free(struct attend_hogs *h)
{
    if (!h)
        return NULL;

    atomic_store_explicit(&h->ends, true, memory_order_relaxed);
    for (size_t i = 0; i < h->n; i++) {
        (void) pthread_join(h->hogs[i].thread, NULL);
        free(h->hogs[i].bytes);
    }
    free(h);
    return NULL;
}
