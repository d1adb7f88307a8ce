/* See backoff.h. */
#include "client/connection/backoff.h"

#include <sys/random.h>

int64_t backoff_wait_ms(uint32_t n_failed, uint32_t random)
{
    int64_t longest = BACKOFF_FIRST_MS;

    for (uint32_t i = 1; i < n_failed && longest < BACKOFF_LONGEST_MS; i++)
        longest *= 2;
    if (longest > BACKOFF_LONGEST_MS)
        longest = BACKOFF_LONGEST_MS;

    return longest / 2 + random % (uint32_t) (longest / 2 + 1);
}

void backoff_failed(struct backoff *b, int64_t now_ms)
{
    uint32_t random = (uint32_t) now_ms; /* kept if the kernel has no random bytes yet */

    (void) getrandom(&random, sizeof(random), GRND_NONBLOCK);
    if (b->n_failed < UINT32_MAX)
        b->n_failed++;
    b->next_ms = now_ms + backoff_wait_ms(b->n_failed, random);
}
