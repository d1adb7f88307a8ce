/* Hashes of runs in a tree of libc; see novelty.h. A hash of 64 bits is the run: texts are not made to
 * collide, and a collision would only leave out one run. */
#include "tools/calibrate/novelty.h"

#include <errno.h>
#include <search.h>
#include <sodium.h>
#include <stdlib.h>

static int novelty_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return x < y ? -1 : x > y;
}

void novelty_deinit(struct novelty *s)
{
    tdestroy(s->runs, free);
    s->runs = NULL;
}

/* Return: 1: new; 0; -ENOMEM. */
static int novelty_add_run(struct novelty *s, uint64_t run)
{
    uint64_t *node;

    if (tfind(&run, &s->runs, novelty_compare))
        return 0;

    node = malloc(sizeof(*node));
    if (!node)
        return -ENOMEM;

    *node = run;
    if (!tsearch(node, &s->runs, novelty_compare)) {
        free(node);
        return -ENOMEM;
    }
    return 1;
}

int novelty_add(struct novelty *s, const uint32_t *tokens, size_t n, size_t *ret_new)
{
    const uint8_t key[crypto_shorthash_KEYBYTES] = {0};
    size_t n_new = 0;

    for (size_t i = 0; i + NOVELTY_RUN <= n; i++) {
        uint64_t run;
        int r;

        (void) crypto_shorthash((uint8_t *) &run, (const uint8_t *) (tokens + i),
                                NOVELTY_RUN * sizeof(*tokens), key);
        r = novelty_add_run(s, run);
        if (r < 0)
            return r;

        n_new += (size_t) r;
    }

    *ret_new = n_new;
    return 0;
}
