/* Bytes of a sequence by purpose: the same counts as kvc_seq_get_usage(), computed for any length. */
#include <stdlib.h>

#include "alloc/table/table_account.h"
#include "tools/inspect/inspection.h"

enum {
    CHUNK_TOKENS = 64,  /* tokens in a page (kvcobra.h) */
    RECENT_TOKENS = 64, /* that stay exact after the newest full page */
    HEADER_BYTES = 128, /* of a page */
};

const uint64_t inspect_contexts[INSPECT_CONTEXTS] = {512, 2048, 8192, 32768, 131072, 1048576};

void inspection_bytes(const struct inspection *x, uint64_t n_tokens, struct sequence_bytes *ret)
{
    const struct geometry *g = x->g;
    struct table_account a;
    uint64_t numbers = (uint64_t) head_side_count(g) * g->d; /* per token */
    uint64_t pages = n_tokens > RECENT_TOKENS ? (n_tokens - RECENT_TOKENS) / CHUNK_TOKENS : 0, held;

    table_account(x->table, &a);
    held = pages > 0 ? x->info.first_page_bytes + (pages - 1) * x->info.page_bytes : 0;
    *ret = (struct sequence_bytes){
        .tokens = n_tokens,
        .pages = pages,
        .codes = (uint64_t) (a.nominal * (double) numbers + 0.5) * CHUNK_TOKENS / 8 * pages,
        .headers = pages * HEADER_BYTES,
        .sinks = pages > 0 ? x->info.n_sink * numbers * 2 : 0,
        .tail = (n_tokens - pages * CHUNK_TOKENS) * numbers * 2,
        .binary16 = n_tokens * numbers * 2,
    };
    ret->padding = held - ret->codes - ret->headers - ret->sinks;
    ret->total = held + ret->tail;
    ret->bpd_true = (double) ret->total * 8 / ((double) n_tokens * (double) numbers);
}
