/* Windows of tokens to calibrate on, from texts; see corpus.h. */
#include "tools/calibrate/corpus.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/novelty.h"
#include "tools/command/document.h"
#include "tools/engine/engine.h"

size_t corpus_windows(size_t n_tokens, size_t window)
{
    return (n_tokens + window - 1) / window;
}

size_t corpus_held(size_t window)
{
    return corpus_windows(DEPTH_TOKENS, window);
}

uint32_t corpus_bos(const struct engine *en)
{
    const struct engine_info *info = engine_info(en);

    return info->add_bos && info->token_bos < info->n_vocab ? info->token_bos : UINT32_MAX;
}

void corpus_deinit(struct corpus *c)
{
    free(c->tokens);
    free(c->ends);
    free(c->documents);
    free(c->source_of);
    free(c->sources);
    free(c->names);
    free(c->repeated);
    free(c->text_of);
    *c = (struct corpus){0};
}

int corpus_init(struct corpus *c, size_t window, size_t n_windows, size_t n_tokens, size_t n_sources,
                struct errmsg *e)
{
    *c = (struct corpus){.window = window};
    c->tokens = calloc(n_tokens + 1, sizeof(*c->tokens));
    c->ends = calloc(n_windows + 1, sizeof(*c->ends));
    c->documents = calloc(n_windows + 1, sizeof(*c->documents));
    c->source_of = calloc(n_windows + 1, sizeof(*c->source_of));
    c->sources = calloc(n_sources + 1, sizeof(*c->sources));
    c->names = calloc(n_sources + 1, sizeof(*c->names));
    c->repeated = calloc(n_sources + 1, sizeof(*c->repeated));
    c->text_of = calloc(n_sources + 1, sizeof(*c->text_of));
    if (!c->tokens || !c->ends || !c->documents || !c->source_of || !c->sources || !c->names ||
        !c->repeated || !c->text_of)
        return fail(e, -ENOMEM, "out of memory for %zu windows of %zu tokens", n_windows, window);

    return 0;
}

/* The hash of a window's tokens and its place in the text: statistics of different texts can be merged, and
 * the same window of a text cannot be counted twice. */
static uint64_t corpus_name_window(const uint32_t *tokens, size_t n, uint64_t place)
{
    uint8_t hash[crypto_generichash_BYTES_MIN];
    crypto_generichash_state state;
    uint64_t name;

    (void) crypto_generichash_init(&state, NULL, 0, sizeof(hash));
    (void) crypto_generichash_update(&state, (const uint8_t *) &place, sizeof(place));
    (void) crypto_generichash_update(&state, (const uint8_t *) tokens, n * sizeof(*tokens));
    (void) crypto_generichash_final(&state, hash, sizeof(hash));
    memcpy(&name, hash, sizeof(name));
    return name;
}

bool corpus_is_apart(const struct corpus *c, uint32_t source)
{
    size_t n_used = 0, n_larger = 0;

    for (size_t i = 0; i < c->n_sources; i++) {
        const struct stats_source *a = &c->sources[i], *b = &c->sources[source];

        n_used += a->windows > 0;
        n_larger += a->tokens > b->tokens || (a->tokens == b->tokens && i < source);
    }
    return n_used <= STATS_DOMAINS_MAX || n_larger < STATS_DOMAINS_MAX - 1;
}

void corpus_add(struct corpus *c, uint32_t source, uint32_t bos, const uint32_t *tokens, size_t n,
                uint64_t place)
{
    size_t start = corpus_start(c, c->n_windows), at = start;

    if (bos != UINT32_MAX)
        c->tokens[at++] = bos;
    memcpy(c->tokens + at, tokens, n * sizeof(*tokens));
    c->ends[c->n_windows] = at + n;
    c->source_of[c->n_windows] = source;
    c->documents[c->n_windows++] = corpus_name_window(c->tokens + start, at + n - start, place);
}

/* ---- cutting texts ---- */

struct corpus_cut {
    size_t text, first, n; /* tokens [first, first + n) of a text */
    uint64_t place;
    uint32_t piece; /* of the text */
};

/* Position of the next window in a text. */
struct corpus_reader {
    const struct document *d;
    size_t at, line;           /* of a document per line */
    size_t n_even, even;       /* of a document in one: so many windows at equal distances come first */
    uint64_t place;            /* of the next window, then */
    uint32_t n_pieces, source; /* number of the first piece among all sources */
    size_t n_repeated;
};

/* Makes the reader of a text of which some @n_tokens are to be read, as @n_pieces pieces at most. */
static void corpus_begin(const struct document *d, size_t n_tokens, size_t n_pieces, size_t longest,
                         struct corpus_reader *ret)
{
    size_t n_all = d->n_tokens / longest, n = n_tokens / longest < n_all ? n_tokens / longest : n_all;

    *ret = (struct corpus_reader){.d = d, .n_pieces = 1};
    if (n_pieces < 2 || n < 4)
        return;

    ret->n_pieces = (uint32_t) (n / 2 < n_pieces ? n / 2 : n_pieces);
    ret->n_even = n;
}

/* Place of the i-th of the windows at equal distances: of each piece there are as many, but for one. */
static uint64_t corpus_even_place(const struct corpus_reader *r, uint64_t i, size_t n_all)
{
    return (i * n_all + r->n_even - 1) / r->n_even;
}

/* Cuts the next window of a text in one. */
static bool corpus_next_window(struct corpus_reader *r, size_t longest, struct corpus_cut *ret)
{
    size_t n_all = r->d->n_tokens / longest;
    uint64_t place;

    while (r->even == r->n_even && r->n_even > 0 && r->place < n_all &&
           corpus_even_place(r, r->place * r->n_even / n_all, n_all) == r->place)
        r->place++; /* it came among the first */
    if (r->place >= n_all)
        return false;

    place = r->even < r->n_even ? corpus_even_place(r, r->even++, n_all) : r->place++;
    *ret = (struct corpus_cut){
        .first = place * longest,
        .n = longest,
        .place = place,
        .piece = (uint32_t) (place * r->n_pieces / n_all),
    };
    return true;
}

/* Cuts the next window. False: the text has no more. */
static bool corpus_next_cut(struct corpus_reader *r, size_t longest, struct corpus_cut *ret)
{
    const struct document *d = r->d;

    if (!d->ends)
        return corpus_next_window(r, longest, ret);

    while (r->at < d->n_tokens) {
        size_t left = d->ends[r->line] - r->at, n = left < longest ? left : longest;
        bool whole = n >= LINE_TOKENS_MIN || n == longest;

        *ret = (struct corpus_cut){
            .first = r->at,
            .n = n,
            .place = r->place,
            .piece = (uint32_t) (r->place % r->n_pieces),
        };
        r->at += n;
        r->line += r->at == d->ends[r->line];
        if (!whole)
            continue;

        r->place++;
        return true;
    }

    return false;
}

/* Whether a window says little that earlier windows did not: fewer than a quarter of its runs are new; none
 * of a line, since lines of a data set often have a long beginning in common. */
static bool corpus_repeats(const struct document *d, size_t n, size_t n_new)
{
    size_t n_runs = n < NOVELTY_RUN ? 0 : n - NOVELTY_RUN + 1;

    return n_runs > 0 && (d->ends ? n_new == 0 : 4 * n_new < n_runs);
}

/* Cuts the next window that is new. Return: 1; 0: the text has no more; -ENOMEM. */
static int corpus_next_new_cut(struct corpus_reader *r, size_t longest, struct novelty *seen,
                               struct corpus_cut *ret)
{
    while (corpus_next_cut(r, longest, ret)) {
        size_t n_new;
        int err = novelty_add(seen, r->d->tokens + ret->first, ret->n, &n_new);

        if (err < 0)
            return err;
        if (!corpus_repeats(r->d, ret->n, n_new))
            return 1;

        r->n_repeated++;
    }

    return 0;
}

struct corpus_cuts {
    struct corpus_cut *cut;
    size_t n, room, n_tokens; /* with BOS */
};

static int corpus_cuts_add(struct corpus_cuts *c, const struct corpus_cut *cut, size_t bos)
{
    if (c->n == c->room) {
        size_t room = 2 * c->room + 64;
        struct corpus_cut *grown = reallocarray(c->cut, room, sizeof(*grown));

        if (!grown)
            return -ENOMEM;

        c->cut = grown;
        c->room = room;
    }

    c->cut[c->n++] = *cut;
    c->n_tokens += cut->n + bos;
    return 0;
}

/* Cuts a new window from each text in turn until there are o->n_tokens and the tokens to hold out. */
static int corpus_cut_texts(struct corpus_reader *readers, size_t n, size_t longest, size_t bos,
                            const struct corpus_options *o, struct corpus_cuts *ret)
{
    _cleanup_(novelty_deinit) struct novelty seen = {NULL};
    size_t counted = 0; /* tokens at the moment when o->n_tokens was reached */
    bool any = true;

    while (any) {
        any = false;
        for (size_t i = 0; i < n; i++) {
            struct corpus_cut cut;
            int r;

            if (ret->n_tokens >= o->n_tokens && counted == 0)
                counted = ret->n_tokens;
            if (counted > 0 && (!o->want_held || ret->n_tokens - counted >= DEPTH_TOKENS))
                return 0;
            r = corpus_next_new_cut(&readers[i], longest, &seen, &cut);
            if (r < 0)
                return r;
            if (r == 0)
                continue;

            any = true;
            cut.text = i;
            r = corpus_cuts_add(ret, &cut, bos);
            if (r < 0)
                return r;
        }
    }

    return 0;
}

/* Number of last windows that have DEPTH_TOKENS together; more than all windows if these are too few. */
static size_t corpus_count_held(const struct corpus_cuts *c, size_t bos)
{
    size_t n = 0, tokens = 0;

    while (tokens < DEPTH_TOKENS && n < c->n)
        tokens += c->cut[c->n - ++n].n + bos;
    return tokens < DEPTH_TOKENS ? n + 1 : n;
}

static void corpus_describe(const struct document *d, size_t window, struct stats_source *ret)
{
    *ret = (struct stats_source){
        .bytes = d->n_bytes,
        .window = (uint32_t) window,
        .kind = d->ends ? SOURCE_LINES : SOURCE_TEXT,
    };
    memcpy(ret->digest, d->digest, sizeof(ret->digest));
}

/* The name of a source: the digest of its text. That of a piece begins as the text's, as people see it, and
 * ends with how many pieces there are and which one it is. */
static void corpus_name_source(const struct corpus_reader *r, uint32_t piece,
                               uint8_t ret_name[static DIGEST_BYTES])
{
    memcpy(ret_name, r->d->digest, DIGEST_BYTES);
    if (r->n_pieces > 1) {
        ret_name[DIGEST_BYTES - 2] = (uint8_t) r->n_pieces;
        ret_name[DIGEST_BYTES - 1] = (uint8_t) (piece + 1);
    }
}

static void corpus_add_sources(const struct corpus_reader *r, size_t text, struct corpus *c)
{
    for (uint32_t piece = 0; piece < r->n_pieces; piece++) {
        corpus_describe(r->d, c->window, &c->sources[c->n_sources]);
        corpus_name_source(r, piece, c->names[c->n_sources]);
        c->text_of[c->n_sources] = (uint32_t) text;
        c->repeated[c->n_sources++] = piece == 0 ? r->n_repeated : 0;
    }
}

static int corpus_build(const struct engine *en, const struct corpus_reader *readers, size_t n,
                        size_t n_sources, const struct corpus_cuts *cuts, size_t n_held, size_t window,
                        struct corpus *ret_corpus, struct errmsg *e)
{
    _cleanup_(corpus_deinit) struct corpus c = {0};
    int r = corpus_init(&c, window, cuts->n, cuts->n_tokens, n_sources, e);

    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++)
        corpus_add_sources(&readers[i], i, &c);
    for (size_t i = 0; i < cuts->n; i++) {
        const struct corpus_cut *cut = &cuts->cut[i];
        const struct corpus_reader *from = &readers[cut->text];
        uint32_t source = from->source + cut->piece;

        corpus_add(&c, source, corpus_bos(en), from->d->tokens + cut->first, cut->n, cut->place);
        if (i + n_held < cuts->n) {
            c.sources[source].windows++;
            c.sources[source].tokens += corpus_length(&c, i);
        }
    }

    c.n_windows -= n_held;
    c.n_held = n_held;
    *ret_corpus = c;
    c = (struct corpus){0};
    return 0;
}

static int corpus_fail_short(const struct corpus_reader *readers, size_t n, const struct corpus_options *o,
                             size_t longest, struct errmsg *e)
{
    size_t n_tokens = 0, n_repeated = 0;

    for (size_t i = 0; i < n; i++) {
        n_tokens += readers[i].d->n_tokens;
        n_repeated += readers[i].n_repeated;
    }

    if (n_repeated > 0)
        return fail(e, -EINVAL,
                    "the text has %zu tokens, but repeats itself: %zu windows of up to %zu have nothing new, "
                    "and the others are too few: give other text",
                    n_tokens, n_repeated, o->window);

    return fail(
        e, -EINVAL,
        "the text has %zu tokens; windows of %zu need at least %zu: give more text or a smaller --window",
        n_tokens, o->window, (1 + (o->want_held ? corpus_held(o->window) : 0)) * longest);
}

int corpus_from_texts(const struct engine *en, const struct document *texts, size_t n,
                      const struct corpus_options *o, struct corpus *ret_corpus, struct errmsg *e)
{
    size_t bos = corpus_bos(en) != UINT32_MAX, longest = o->window - bos, n_sources = 0, n_held;
    _cleanup_(freep) struct corpus_reader *readers = calloc(n + 1, sizeof(*readers));
    struct corpus_cuts cuts = {0};
    int r = readers ? 0 : -ENOMEM;

    for (size_t i = 0; r == 0 && i < n; i++) {
        corpus_begin(&texts[i], o->n_tokens / n, n == 1 ? o->n_pieces : 1, longest, &readers[i]);
        readers[i].source = (uint32_t) n_sources;
        n_sources += readers[i].n_pieces;
    }
    if (r == 0)
        r = corpus_cut_texts(readers, n, longest, bos, o, &cuts);
    n_held = o->want_held ? corpus_count_held(&cuts, bos) : 0;
    if (r < 0)
        r = fail(e, r, "out of memory for the windows of the texts");
    else if (cuts.n < n_held + 1)
        r = corpus_fail_short(readers, n, o, longest, e);
    else
        r = corpus_build(en, readers, n, n_sources, &cuts, n_held, o->window, ret_corpus, e);
    free(cuts.cut);
    return r;
}

uint64_t corpus_own_seed(const struct corpus *texts, uint64_t seed)
{
    uint8_t hash[crypto_generichash_BYTES_MIN];
    crypto_generichash_state state;

    (void) crypto_generichash_init(&state, NULL, 0, sizeof(hash));
    (void) crypto_generichash_update(&state, (const uint8_t *) &seed, sizeof(seed));
    for (size_t i = 0; i < texts->n_windows + texts->n_held; i++)
        (void) crypto_generichash_update(&state, (const uint8_t *) &texts->documents[i],
                                         sizeof(texts->documents[i]));
    (void) crypto_generichash_final(&state, hash, sizeof(hash));
    memcpy(&seed, hash, sizeof(seed));
    return seed;
}

int corpus_join(struct corpus *c, struct corpus *more, struct errmsg *e)
{
    _cleanup_(corpus_deinit) struct corpus both = {0};
    size_t n_more = corpus_tokens(more), n_all = c->n_windows + c->n_held;
    int r = corpus_init(&both, c->window > more->window ? c->window : more->window, more->n_windows + n_all,
                        n_more + corpus_start(c, n_all), c->n_sources + more->n_sources, e);

    if (r < 0)
        return r;

    memcpy(both.tokens, more->tokens, n_more * sizeof(*both.tokens));
    memcpy(both.tokens + n_more, c->tokens, corpus_start(c, n_all) * sizeof(*both.tokens));
    memcpy(both.ends, more->ends, more->n_windows * sizeof(*both.ends));
    memcpy(both.documents, more->documents, more->n_windows * sizeof(*both.documents));
    memcpy(both.documents + more->n_windows, c->documents, n_all * sizeof(*both.documents));
    memcpy(both.source_of, more->source_of, more->n_windows * sizeof(*both.source_of));
    for (size_t i = 0; i < more->n_windows; i++)
        both.source_of[i] += (uint32_t) c->n_sources;
    memcpy(both.source_of + more->n_windows, c->source_of, n_all * sizeof(*both.source_of));
    for (size_t i = 0; i < n_all; i++)
        both.ends[more->n_windows + i] = n_more + c->ends[i];
    memcpy(both.sources, c->sources, c->n_sources * sizeof(*both.sources));
    memcpy(both.sources + c->n_sources, more->sources, more->n_sources * sizeof(*both.sources));
    memcpy(both.names, c->names, c->n_sources * sizeof(*both.names));
    memcpy(both.names + c->n_sources, more->names, more->n_sources * sizeof(*both.names));
    memcpy(both.repeated, c->repeated, c->n_sources * sizeof(*both.repeated));
    memcpy(both.text_of, c->text_of, c->n_sources * sizeof(*both.text_of));
    both.n_sources = c->n_sources + more->n_sources;
    both.n_windows = more->n_windows + c->n_windows;
    both.n_held = c->n_held;
    corpus_deinit(more);
    corpus_deinit(c);
    *c = both;
    both = (struct corpus){0};
    return 0;
}
