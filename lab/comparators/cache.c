/*
 * See cache.h. An exact cache holds the vectors that queries see. Rows are replaced by decoded ones just
 * before the first query that sees them decoded. Exact vectors are kept until their block is coded finally.
 */
#include "lab/comparators/cache.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/rotary.h"
#include "lab/comparators/comparator.h"

enum { CHUNK = 64, NEWER = 64 }; /* as in the product: a chunk is coded when this many newer tokens exist */

struct side_state {
    /* [n_gone + n_exact, n_kv_heads, d]: the last n_exact are the tokens from n_done on. Keys are rotated if
     * the format codes them after RoPE. */
    float *exact;
    size_t n_gone, n_exact, room;
    size_t n_done;      /* sinks, and finally coded tokens */
    uint64_t bits;      /* of the finally coded tokens */
    uint64_t open_bits; /* of an incomplete block, if it is coded */
    size_t n_open;      /* its tokens */
};

struct comparator_cache {
    const struct comparator_codec *codec;
    struct comparator_cache_options o;
    struct exact_cache *seen;
    struct kv_cache ops; /* of @seen */
    struct rotary rotary;
    size_t n_max, row;
    size_t *n;                /* [n_layers] tokens */
    struct side_state *sides; /* [n_layers, 2] */
    float *decoded;           /* [room] decoded vectors of the current run */
    size_t decoded_room;
};

int comparator_cache_new(const struct comparator_codec *codec, const struct comparator_cache_options *o,
                         size_t n_max, struct comparator_cache **ret_cache, struct errmsg *e)
{
    _cleanup_(comparator_cache_freep) struct comparator_cache *c = calloc(1, sizeof(*c));
    const struct geometry *g = &codec->geometry;
    int r;

    if (!c)
        return fail(e, -ENOMEM, "out of memory for a cache of %s", codec->what->name);

    *c = (struct comparator_cache){
        .codec = codec, .o = *o, .n_max = n_max, .row = (size_t) g->n_kv_heads * g->d};
    if (c->o.sides == 0)
        c->o.sides = 1u << SIDE_K | 1u << SIDE_V;
    if (c->o.n_layers == 0)
        c->o.n_layers = g->n_layers - c->o.first_layer;
    c->n = calloc(g->n_layers, sizeof(*c->n));
    c->sides = calloc((size_t) g->n_layers * 2, sizeof(*c->sides));
    if (!c->n || !c->sides)
        return fail(e, -ENOMEM, "out of memory for a cache of %s", codec->what->name);

    for (uint32_t i = 0; i < g->n_layers * 2; i++)
        c->sides[i].n_done = o->n_sink;
    r = exact_cache_new(g, n_max, &c->seen, e);
    if (r < 0)
        return r;

    c->ops = exact_cache_ops(c->seen);
    *ret_cache = take_ptr(c);
    return 0;
}

struct comparator_cache *comparator_cache_free(struct comparator_cache *c)
{
    if (!c)
        return NULL;

    for (uint32_t i = 0; c->sides && i < c->codec->geometry.n_layers * 2; i++)
        free(c->sides[i].exact);
    free(c->sides);
    free(c->n);
    free(c->decoded);
    rotary_deinit(&c->rotary);
    exact_cache_free(c->seen);
    free(c);
    return NULL;
}

static bool cache_is_coded(const struct comparator_cache *c, uint32_t layer, enum side side)
{
    return c->o.sides >> side & 1 && layer >= c->o.first_layer && layer - c->o.first_layer < c->o.n_layers;
}

/* ---- coding ---- */

/* Codes @n exact tokens from @first on; queries see them decoded from now on. */
static int cache_code_run(struct comparator_cache *c, uint32_t layer, enum side side, size_t first, size_t n,
                          uint64_t *ret_bits, struct errmsg *e)
{
    const struct comparator *what = c->codec->what;
    struct side_state *s = &c->sides[layer * 2 + side];
    size_t floats = n * c->row;
    int r;

    if (floats > c->decoded_room) {
        float *p = realloc(c->decoded, floats * sizeof(*p));

        if (!p)
            return fail(e, -ENOMEM, "out of memory for %zu tokens of %s", n, what->name);

        c->decoded = p;
        c->decoded_room = floats;
    }

    r = what->code(c->codec, layer, side, s->exact + (s->n_gone + first - s->n_done) * c->row, n, c->decoded,
                   ret_bits);
    if (r < 0)
        return fail(e, r, "out of memory for %zu tokens of %s", n, what->name);

    for (size_t i = 0; i < floats; i++)
        if (!isfinite(c->decoded[i]))
            return fail(e, -ERANGE, "%s cannot store the %s of layer %u: a scale exceeds binary16",
                        what->name, side == SIDE_K ? "keys" : "values", layer);
    exact_cache_replace(c->seen, layer, side, first, n, what->post_rope, c->decoded);
    return 0;
}

/* Codes finally up to @end, the end of a block. */
static int cache_finish(struct comparator_cache *c, uint32_t layer, enum side side, size_t end,
                        struct errmsg *e)
{
    struct side_state *s = &c->sides[layer * 2 + side];
    size_t block = c->codec->what->block_tokens;

    while (s->n_done < end) {
        size_t rest = s->n_done % block,
               n = rest ? block - rest : end - s->n_done; /* the first block lacks the sinks */
        uint64_t bits;
        int r = cache_code_run(c, layer, side, s->n_done, n, &bits, e);

        if (r < 0)
            return r;

        s->bits += bits;
        s->n_done += n;
        s->n_gone += n;
        s->n_exact -= n;
        s->open_bits = s->n_open = 0;
    }

    return 0;
}

/* Codes tokens below @from, and the incomplete block too if @open. */
static int cache_code_until(struct comparator_cache *c, uint32_t layer, enum side side, size_t from,
                            bool open, struct errmsg *e)
{
    struct side_state *s = &c->sides[layer * 2 + side];
    size_t block = c->codec->what->block_tokens;
    int r = cache_finish(c, layer, side, from - from % block, e);

    if (r < 0 || !open || s->n_done >= from || from - s->n_done == s->n_open)
        return r;

    r = cache_code_run(c, layer, side, s->n_done, from - s->n_done, &s->open_bits, e);
    if (r < 0)
        return r;

    s->n_open = from - s->n_done;
    return 0;
}

/* First token that is exact for the query at @position, apart from sinks. */
static size_t cache_exact_from(const struct comparator_cache *c, size_t position, size_t n)
{
    size_t after = position + 1;

    if (c->o.n_recent == 0)
        return n;
    if (c->o.n_recent < 0)
        return after < NEWER ? 0 : (after - NEWER) / CHUNK * CHUNK;

    return after < (size_t) c->o.n_recent ? 0 : after - (size_t) c->o.n_recent;
}

/* ---- the engine's cache ---- */

/* Appends new tokens to the exact ones of a side. */
static int cache_store_exact(struct comparator_cache *c, uint32_t layer, enum side side, const float *x,
                             size_t n, struct errmsg *e)
{
    struct side_state *s = &c->sides[layer * 2 + side];
    size_t past = c->n[layer], skip = past < c->o.n_sink ? c->o.n_sink - past : 0, bytes;
    const struct geometry *g = &c->codec->geometry;

    if (skip >= n)
        return 0;

    n -= skip;
    x += skip * c->row;
    if (s->n_gone > 0)
        memmove(s->exact, s->exact + s->n_gone * c->row, s->n_exact * c->row * sizeof(float));
    s->n_gone = 0;
    if (s->n_exact + n > s->room || (s->n_exact + n) * 4 < s->room) { /* shrink after a prefill */
        float *p = checked_mul3(s->n_exact + n, c->row, sizeof(*p), &bytes) ? realloc(s->exact, bytes) : NULL;

        if (!p)
            return fail(e, -ENOMEM, "out of memory for %zu tokens of %s", n, c->codec->what->name);

        s->exact = p;
        s->room = s->n_exact + n;
    }

    memcpy(s->exact + s->n_exact * c->row, x, n * c->row * sizeof(*x));
    if (side == SIDE_K && c->codec->what->post_rope)
        for (size_t t = 0; t < n; t++)
            for (uint32_t h = 0; h < g->n_kv_heads; h++) {
                float *key = s->exact + (s->n_exact + t) * c->row + (size_t) h * g->d;

                rotary_rotate(&c->rotary, past + skip + t, key, 1, key);
            }
    s->n_exact += n;
    return 0;
}

static int cache_append(void *ctx, uint32_t layer, const float *k, const float *v, size_t n, struct errmsg *e)
{
    struct comparator_cache *c = ctx;
    int r = c->ops.append(c->ops.ctx, layer, k, v, n, e);

    if (r < 0)
        return r;

    r = rotary_reserve(&c->rotary, &c->codec->geometry, c->n[layer] + n, c->n_max, e);
    for (enum side side = SIDE_K; r == 0 && side <= SIDE_V; side++)
        if (cache_is_coded(c, layer, side))
            r = cache_store_exact(c, layer, side, side == SIDE_K ? k : v, n, e);
    if (r < 0)
        return r;

    c->n[layer] += n;
    return 0;
}

/* Attends in runs of queries that see the same tokens exactly. */
static int cache_attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out, struct errmsg *e)
{
    struct comparator_cache *c = ctx;
    const struct geometry *g = &c->codec->geometry;
    size_t row = (size_t) g->n_heads * g->d, n = c->n[layer], block = c->codec->what->block_tokens;
    int r = 0;

    for (size_t at = n - n_q, end; at < n; at = end) {
        size_t from = cache_exact_from(c, at, n), coded = c->o.n_recent == 0 ? from : from - from % block;

        for (end = at + 1; end < n; end++) {
            size_t next = cache_exact_from(c, end, n);

            if ((c->o.n_recent == 0 ? next : next - next % block) != coded)
                break;
        }

        for (enum side side = SIDE_K; r == 0 && side <= SIDE_V; side++)
            if (cache_is_coded(c, layer, side))
                r = cache_code_until(c, layer, side, coded, c->o.n_recent == 0, e);
        if (r < 0)
            return r;

        r = exact_cache_attend(c->seen, layer, q + (at + n_q - n) * row, at, end - at,
                               out + (at + n_q - n) * row, e);
        if (r < 0)
            return r;
    }

    return 0;
}

static size_t cache_length(void *ctx)
{
    return comparator_cache_tokens(ctx);
}

static void cache_use_threads(void *ctx, struct threads *t)
{
    struct comparator_cache *c = ctx;

    c->ops.use_threads(c->ops.ctx, t);
}

struct kv_cache comparator_cache_ops(struct comparator_cache *c)
{
    return (struct kv_cache){
        .ctx = c,
        .append = cache_append,
        .attend = cache_attend,
        .length = cache_length,
        .use_threads = cache_use_threads,
    };
}

size_t comparator_cache_tokens(const struct comparator_cache *c)
{
    return c->ops.length(c->ops.ctx);
}

void comparator_cache_usage(const struct comparator_cache *c, uint64_t *ret_bits, uint64_t *ret_numbers)
{
    uint64_t bits = 0, numbers = 0;

    for (uint32_t i = 0; i < c->codec->geometry.n_layers * 2; i++) {
        const struct side_state *s = &c->sides[i];

        bits += s->bits + s->open_bits;
        if (cache_is_coded(c, i / 2, (enum side)(i % 2)))
            numbers += (s->n_done + s->n_open - c->o.n_sink) * c->row;
    }

    *ret_bits = bits;
    *ret_numbers = numbers;
}
