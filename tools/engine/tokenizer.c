/* Encoding text, and the bytes of tokens; see tokenizer.h. */
#include "tools/engine/tokenizer.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/pretokenizer.h"
#include "tools/engine/tokenizer_data.h"

#include <errno.h>
#include <string.h>

#define TEXT_MAX ((size_t) 1 << 30)

struct tokenizer_output {
    const struct tokenizer *t;
    uint32_t *ids;
    size_t n, capacity;
    uint32_t *piece; /* ids of the current piece before merging */
    size_t piece_capacity;
    struct bpe_scratch scratch;
};

static void tokenizer_output_deinit(struct tokenizer_output *o)
{
    free(o->ids);
    free(o->piece);
    bpe_scratch_deinit(&o->scratch);
}

static int tokenizer_grow(uint32_t **ids, size_t *capacity, size_t wanted)
{
    size_t n = *capacity < 256 ? 256 : *capacity, bytes;
    uint32_t *p;

    if (wanted <= *capacity)
        return 0;

    while (n < wanted)
        if (!checked_mul(n, 2, &n))
            return -ENOMEM;
    if (!checked_mul(n, sizeof(*p), &bytes))
        return -ENOMEM;

    p = realloc(*ids, bytes);
    if (!p)
        return -ENOMEM;

    *ids = p;
    *capacity = n;
    return 0;
}

static int tokenizer_put(struct tokenizer_output *o, const uint32_t *ids, size_t n)
{
    int r = tokenizer_grow(&o->ids, &o->capacity, o->n + n);

    if (r < 0)
        return r;

    memcpy(o->ids + o->n, ids, n * sizeof(*ids));
    o->n += n;
    return 0;
}

static int tokenizer_encode_piece(void *ctx, const char *piece, size_t bytes)
{
    struct tokenizer_output *o = ctx;
    const struct tokenizer *t = o->t;
    size_t n;
    int r;

    if (pretokenizer_ignores_merges(t->pre)) {
        uint32_t whole = tokenizer_find(t, piece, bytes);

        if (whole != TOKENIZER_NONE)
            return tokenizer_put(o, &whole, 1);
    }

    r = tokenizer_grow(&o->piece, &o->piece_capacity, bytes);
    if (r < 0)
        return r;

    for (size_t i = 0; i < bytes; i++)
        o->piece[i] = t->byte_ids[(unsigned char) piece[i]];
    r = bpe_merge(t->rules, t->n_rules, &o->scratch, o->piece, bytes, &n);
    if (r < 0)
        return r;

    return tokenizer_put(o, o->piece, n);
}

static size_t tokenizer_token_bytes(const struct tokenizer *t, uint32_t id)
{
    return t->offsets[id + 1] - t->offsets[id];
}

static const struct special_token *tokenizer_find_special(const struct tokenizer *t, const char *text,
                                                          size_t bytes)
{
    size_t low = 0, high = t->n_specials;

    while (low < high) {
        size_t mid = low + (high - low) / 2, n = tokenizer_token_bytes(t, t->specials[mid].id);
        int r = memcmp(t->pool + t->offsets[t->specials[mid].id], text, n < bytes ? n : bytes);

        if (r == 0)
            r = (n > bytes) - (n < bytes);
        if (r == 0)
            return &t->specials[mid];
        if (r < 0)
            low = mid + 1;
        else
            high = mid;
    }

    return NULL;
}

/* The longest special token that starts at @text. */
static const struct special_token *tokenizer_special_at(const struct tokenizer *t, const char *text,
                                                        size_t left, bool control)
{
    for (size_t i = 0; i < t->n_special_lengths; i++) {
        const struct special_token *s;

        if (t->special_lengths[i] > left)
            continue;

        s = tokenizer_find_special(t, text, t->special_lengths[i]);
        if (s && (s->always || control))
            return s;
    }

    return NULL;
}

static int tokenizer_encode_text(struct tokenizer_output *o, const char *text, size_t bytes,
                                 bool parse_special, struct errmsg *e)
{
    bool starts[256] = {false}; /* first bytes of special tokens */
    size_t from = 0;
    int r;

    for (size_t i = 0; i < o->t->n_specials; i++)
        starts[(unsigned char) o->t->pool[o->t->offsets[o->t->specials[i].id]]] = true;

    for (size_t at = 0; at < bytes;) {
        const struct special_token *s = NULL;

        if (starts[(unsigned char) text[at]])
            s = tokenizer_special_at(o->t, text + at, bytes - at, parse_special);
        if (!s) {
            at++;
            continue;
        }

        r = pretokenizer_split(o->t->pre, text + from, at - from, tokenizer_encode_piece, o, e);
        if (r < 0)
            return r;

        r = tokenizer_put(o, &s->id, 1);
        if (r < 0)
            return r;

        at += tokenizer_token_bytes(o->t, s->id);
        from = at;
    }

    return pretokenizer_split(o->t->pre, text + from, bytes - from, tokenizer_encode_piece, o, e);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, bool parse_special,
                     uint32_t **ret_ids, size_t *ret_n, struct errmsg *e)
{
    _cleanup_(tokenizer_output_deinit) struct tokenizer_output o = {.t = t};
    int r;

    errmsg_clear(e);
    if (bytes > TEXT_MAX)
        return fail(e, -E2BIG, "a text of %zu bytes; the maximum is %zu", bytes, TEXT_MAX);

    r = tokenizer_grow(&o.ids, &o.capacity, 1); /* an empty text gives an empty array, not NULL */
    if (r == 0)
        r = tokenizer_encode_text(&o, text, bytes, parse_special, e);
    if (r == -ENOMEM)
        return fail(e, r, "no memory to encode a text of %zu bytes", bytes);
    if (r < 0)
        return r;

    *ret_ids = take_ptr(o.ids);
    *ret_n = o.n;
    return 0;
}

const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_bytes)
{
    if (id >= t->n_vocab)
        return NULL;

    *ret_bytes = tokenizer_token_bytes(t, id);
    return t->pool + t->offsets[id];
}

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return t->n_vocab;
}
