/* The pieces of work of a block of attend_90.cu, which all its warps go through in the
 * same order: the pages of its split that any row sees, then its part of the sinks and the
 * tail, at most 64 exact rows at a time. */
#pragma once

#include "gpu/cuda/kernels/attend_90.h"
#include "gpu/cuda/kernels/hopper.h"
#include "gpu/cuda/kernels/queries.h"

struct work {
    const struct device_table *table;
    const struct device_head *head;
    const struct device_seq *seq;
    struct rows rows;
    uint32_t kv_head, window;
    uint32_t page, n_pages;   /* first page, and number of pages */
    uint32_t n_sinks;         /* 1 if the sinks belong to this block */
    uint32_t chunk, n_chunks; /* of 64 rows of the tail */
    uint32_t n;               /* number of all pieces */
};

/* One piece. Pages and exact rows are rotated and scored alike. */
struct piece {
    uint32_t first, n; /* position of the first key, number of keys */
    uint32_t page;     /* also set for sinks, which it contains */
    bool exact;
    const uint16_t *k, *v; /* [n][d] of exact rows */
};

/* The union of what the rows see: from .. to - 1. */
DEVICE void seen_by_any(const struct work *w, uint32_t *from, uint32_t *to)
{
    uint32_t beyond = w->rows.position + 1;

    *from = w->window > 0 && beyond > w->window ? beyond - w->window : 0;
    *to = beyond + (w->rows.n - 1) / w->rows.group;
}

DEVICE uint32_t least(uint32_t x, uint32_t y)
{
    return x < y ? x : y;
}

DEVICE struct work work_of(const struct launch_attend *a, const struct launch_attend_item *item,
                           uint32_t tile, uint32_t kv_head)
{
    const struct device_seq *seq = item->seq;
    uint32_t n_pages = seq->n_pages, n_exact = seq->n_exact,
             share = (n_pages + a->n_splits - 1) / a->n_splits;
    uint32_t begin = least(blockIdx.y * share, n_pages), end = least(begin + share, n_pages), from, to, last;
    struct work w = {a->table, a->table->heads + a->layer * a->table->n_kv_heads + kv_head,
                     seq,      rows_of(a->table, item, tile, kv_head),
                     kv_head,  a->window,
                     0,        0,
                     0,        0,
                     0,        0};

    seen_by_any(&w, &from, &to);
    w.page = begin > from / TOKENS ? begin : from / TOKENS;
    last = least(end, (to + TOKENS - 1) / TOKENS);
    w.n_pages = last > w.page ? last - w.page : 0;
    /* sinks end where their page ends or earlier */
    w.n_sinks = begin == 0 && end > 0 && from < a->table->n_sink;
    if (blockIdx.y + 1 == a->n_splits && to > TOKENS * n_pages) {
        uint32_t n_seen = least(to - TOKENS * n_pages, n_exact);

        w.chunk = from > TOKENS * n_pages ? (from - TOKENS * n_pages) / TOKENS : 0;
        w.n_chunks = (n_seen + TOKENS - 1) / TOKENS;
        w.n_chunks = w.n_chunks > w.chunk ? w.n_chunks - w.chunk : 0;
    }
    w.n = w.n_pages + w.n_sinks + w.n_chunks;
    return w;
}

DEVICE struct piece piece_of(const struct work *w, uint32_t i)
{
    const struct device_table *t = w->table;

    if (i < w->n_pages)
        return {(w->page + i) * TOKENS, TOKENS, w->page + i, false, 0, 0};
    if (i < w->n_pages + w->n_sinks) {
        const uint8_t *payload = w->seq->payloads[0];

        return {0,
                t->n_sink,
                0,
                true,
                (const uint16_t *) (payload + w->head->sinks_k),
                (const uint16_t *) (payload + w->head->sinks_v)};
    } else {
        uint32_t at = (w->chunk + i - w->n_pages - w->n_sinks) * TOKENS;
        size_t row = ((size_t) w->kv_head * w->seq->exact_ld + w->seq->first_row + at) * t->d;

        return {w->seq->n_pages * TOKENS + at,
                least(w->seq->n_exact - at, TOKENS),
                0,
                true,
                w->seq->exact_k + row,
                w->seq->exact_v + row};
    }
}

/* Whether some row does not see all of a piece, or the piece has codes at the places of sinks. */
DEVICE bool is_ragged(const struct work *w, const struct piece *p)
{
    uint32_t last = w->rows.position + (w->rows.n - 1) / w->rows.group;

    return p->exact || (p->page == 0 && w->table->n_sink > 0) || w->rows.position + 1 < p->first + TOKENS ||
           (w->window > 0 && last + 1 > w->window && last + 1 - w->window > p->first);
}

/* Keys of a piece that @row sees: from .. to - 1. */
DEVICE void seen_by_row(const struct work *w, const struct piece *p, uint32_t row, uint32_t *from,
                        uint32_t *to)
{
    uint32_t beyond = w->rows.position + row / w->rows.group + 1,
             low = w->window > 0 && beyond > w->window ? beyond - w->window : 0;
    uint32_t hidden = !p->exact && p->page == 0 ? w->table->n_sink : 0;

    *from = low > p->first ? low - p->first : 0;
    *from = *from > hidden ? *from : hidden;
    *to = beyond <= p->first ? 0 : least(beyond - p->first, p->n);
}
