/* See seq_window.h. */
#include "client/sequence/seq_window.h"

#include "gpu/page_layout.h"

size_t seq_window_first(uint32_t window, size_t position)
{
    return window == 0 || position < window ? 0 : (position + 1 - window) / CHUNK_TOKENS;
}

/* seq_window_first() of a text of @n chunks, without those that are there. */
static size_t seq_window_first_needed(uint32_t window, size_t first, size_t n)
{
    size_t needed = seq_window_first(window, n * CHUNK_TOKENS);

    return needed > first ? needed : first;
}

/* A missing chunk ends every text whose window has it: the longest one left ends before that chunk. */
static size_t seq_window_search(uint32_t window, size_t first, size_t n_chunks, seq_window_has has, void *ctx)
{
    size_t n = n_chunks;

    for (size_t i = n; n > first && i > seq_window_first_needed(window, first, n);) {
        i--;
        if (!has(ctx, i))
            n = i;
    }
    return n;
}

size_t seq_window_longest(uint32_t window, size_t first, size_t n_chunks, seq_window_has has, void *ctx,
                          size_t *ret_first)
{
    size_t n = first;

    if (window > 0)
        n = seq_window_search(window, first, n_chunks, has, ctx);
    else
        while (n < n_chunks && has(ctx, n))
            n++;

    *ret_first = n > first ? seq_window_first_needed(window, first, n) : first;
    return n;
}
