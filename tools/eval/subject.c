/* See subject.h. */
#include "client/kvcobra-eval.h"
#include "tools/eval/subject.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/client_model.h"

enum subject_kind { KIND_EXACT, KIND_TABLE, KIND_OTHER };

struct subject {
    enum subject_kind kind;
    char name[64];
    struct engine *en; /* borrowed */
    struct subject_options o;
    struct subject_bits bits;
    kvc_usage usage;
    size_t n_tokens; /* room of the current cache; 0: none */

    /* table */
    kvc_client *client;
    kvc_model *model; /* freed with the client */
    kvc_model_info info;
    double charged_per_token,
        coded_per_token;  /* bits of the coded sides and layers, without and with padding */
    double all_per_token; /* of the whole cache, with padding */
    kvc_seq *seq;

    struct subject_other other;

    struct exact_cache *exact;
    size_t exact_room;
};

static int subject_alloc(struct engine *en, enum subject_kind kind, const char *name,
                         const struct subject_options *o, struct subject **ret, struct errmsg *e)
{
    struct subject *s = calloc(1, sizeof(*s));

    if (!s)
        return fail(e, -ENOMEM, "out of memory for an evaluation of %s", name);

    s->kind = kind;
    s->en = en;
    if (o)
        s->o = *o;
    s->usage.struct_bytes = sizeof(s->usage);
    (void) snprintf(s->name, sizeof(s->name), "%s", name);
    *ret = s;
    return 0;
}

struct subject *subject_free(struct subject *s)
{
    if (!s)
        return NULL;

    (void) kvc_seq_free(s->seq);
    (void) kvc_client_free(s->client);
    if (s->kind == KIND_OTHER) {
        s->other.end(s->other.state);
        s->other.free(s->other.state);
    }
    exact_cache_free(s->exact);
    free(s);
    return NULL;
}

const char *subject_name(const struct subject *s)
{
    return s->name;
}

const struct subject_other *subject_other(const struct subject *s)
{
    return s->kind == KIND_OTHER ? &s->other : NULL;
}

const kvc_model_info *subject_table(const struct subject *s)
{
    return s->kind == KIND_TABLE ? &s->info : NULL;
}

const kvc_usage *subject_usage(const struct subject *s)
{
    return &s->usage;
}

struct subject_bits subject_bits(const struct subject *s)
{
    return s->bits;
}

double subject_charged_bpd(const struct subject *s)
{
    if (s->kind == KIND_EXACT)
        return 16;

    return s->bits.charged_numbers > 0 ? s->bits.charged / s->bits.charged_numbers : 0;
}

double subject_held_bpd(const struct subject *s)
{
    if (s->kind == KIND_EXACT)
        return 16;

    return s->bits.numbers > 0 ? s->bits.held / s->bits.numbers : 0;
}

/* ---- coded parts ---- */

static bool subject_is_coded(const struct subject_options *o, uint32_t layer, enum side side)
{
    return (o->sides == 0 || o->sides >> side & 1) &&
           (o->n_layers == 0 || (layer >= o->first_layer && layer - o->first_layer < o->n_layers));
}

/* Numbers of one token in the sides and layers that are coded. */
static double subject_coded_numbers(const struct subject *s)
{
    const struct geometry *g = engine_geometry(s->en);
    double n = 0;

    for (uint32_t i = 0; i < head_side_count(g); i++)
        if (subject_is_coded(&s->o, i / 2 / g->n_kv_heads, (enum side)(i % 2)))
            n += g->d;
    return n;
}

static void subject_weigh_table(struct subject *s, const struct table *t)
{
    const struct geometry *g = &t->geometry;

    for (uint32_t i = 0; i < head_side_count(g); i++) {
        const struct codec *c = &t->codecs[i];

        s->all_per_token += c->code_bits;
        if (!subject_is_coded(&s->o, i / 2 / g->n_kv_heads, (enum side)(i % 2)))
            continue;

        s->charged_per_token += table_codec_nominal_bits(c, g->d);
        s->coded_per_token += c->code_bits;
    }
}

/* ---- the three kinds ---- */

/* "tables/model-2.table": "model-2" */
static void subject_name_of(const char *path, char *ret, size_t bytes)
{
    const char *base = strrchr(path, '/');
    size_t n;

    base = base ? base + 1 : path;
    n = strlen(base);
    if (n > 6 && strcmp(base + n - 6, ".table") == 0)
        n -= 6;
    (void) snprintf(ret, bytes, "%.*s", (int) n, base);
    for (char *p = ret; *p; p++)
        if ((unsigned char) *p < ' ' || *p == 0x7f) /* control characters must not reach the terminal */
            *p = '?';
}

int subject_table_new(struct engine *en, const char *path, const void *bytes, size_t n_bytes,
                      const struct subject_options *o, struct subject **ret_subject, struct errmsg *e)
{
    _cleanup_(subject_freep) struct subject *s = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    char name[sizeof(s->name)];
    int r;

    subject_name_of(path, name, sizeof(name));
    r = subject_alloc(en, KIND_TABLE, name, o, &s, e);
    if (r < 0)
        return r;

    r = client_open(NULL, &s->client, e);
    if (r < 0)
        return r;

    r = bytes ? model_open_bytes(s->client, en, bytes, n_bytes, &s->model, e)
              : model_open(s->client, en, path, &s->model, e);
    if (r < 0)
        return r;

    r = bytes ? table_parse(bytes, n_bytes, &t, e) : table_load(path, &t, e);
    if (r < 0)
        return r;

    s->info.struct_bytes = sizeof(s->info);
    r = kvc_model_get_info(s->model, &s->info);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(s->client));

    subject_weigh_table(s, t);
    *ret_subject = take_ptr(s);
    return 0;
}

int subject_other_new(struct engine *en, const char *name, const struct subject_other *what,
                      const struct subject_options *o, struct subject **ret_subject, struct errmsg *e)
{
    struct subject *s;
    int r = subject_alloc(en, KIND_OTHER, name, o, &s, e);

    if (r < 0) {
        what->free(what->state);
        return r;
    }

    s->other = *what;
    *ret_subject = s;
    return 0;
}

int subject_exact_new(struct engine *en, struct subject **ret_subject, struct errmsg *e)
{
    return subject_alloc(en, KIND_EXACT, "exact", NULL, ret_subject, e);
}

/* ---- caches ---- */

static int subject_begin_table(struct subject *s, struct kv_cache *ret_cache, struct errmsg *e)
{
    const kvc_eval_options o = {
        .struct_bytes = sizeof(o),
        .n_sink = s->o.n_sink,
        .n_recent = s->o.n_recent,
        .sides = s->o.sides,
        .first_layer = s->o.first_layer,
        .n_layers = s->o.n_layers,
        .post_rope = s->o.post_rope,
    };
    int r = kvc_seq_new_eval(s->model, &o, &s->seq);

    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(s->client));

    *ret_cache = kvcobra_cache_ops(s->client, s->seq);
    return 0;
}

/* The exact cache is reused: allocating its pages takes long. */
static int subject_begin_exact(struct subject *s, size_t n_tokens, struct kv_cache *ret_cache,
                               struct errmsg *e)
{
    if (n_tokens > s->exact_room) {
        s->exact = exact_cache_free(s->exact);
        s->exact_room = 0;
        int r = exact_cache_new(engine_geometry(s->en), n_tokens, &s->exact, e);

        if (r < 0)
            return r;

        s->exact_room = n_tokens;
    }

    exact_cache_clear(s->exact);
    *ret_cache = exact_cache_ops(s->exact);
    return 0;
}

int subject_begin(struct subject *s, size_t n_tokens, struct kv_cache *ret_cache, struct errmsg *e)
{
    int r;

    assert(s->n_tokens == 0 && n_tokens > 0);
    if (s->kind == KIND_TABLE)
        r = subject_begin_table(s, ret_cache, e);
    else if (s->kind == KIND_OTHER)
        r = s->other.begin(s->other.state, &s->o, n_tokens, ret_cache, e);
    else
        r = subject_begin_exact(s, n_tokens, ret_cache, e);
    if (r < 0)
        return r;

    s->n_tokens = n_tokens;
    return 0;
}

/* ---- counting ---- */

static void subject_add_usage(kvc_usage *sum, const kvc_usage *u)
{
    sum->tokens += u->tokens;
    sum->numbers += u->numbers;
    sum->code_bytes += u->code_bytes;
    sum->padding_bytes += u->padding_bytes;
    sum->header_bytes += u->header_bytes;
    sum->sink_bytes += u->sink_bytes;
    sum->tail_bytes += u->tail_bytes;
    sum->shared_bytes += u->shared_bytes;
}

/* Headers and the rounding of slots belong to the whole cache: a part is charged in proportion to its
 * numbers. */
static int subject_count_table(struct subject *s, struct errmsg *e)
{
    kvc_usage u = {.struct_bytes = sizeof(u)};
    double per_token, share, packed, exact, rest;
    int r = kvc_seq_get_usage(s->seq, &u);

    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(s->client));

    subject_add_usage(&s->usage, &u);
    if (u.tokens == 0)
        return 0;

    per_token = (double) u.numbers / (double) u.tokens;
    share = subject_coded_numbers(s) / per_token;
    packed = (double) u.tokens - (double) u.tail_bytes / 2 / per_token;
    exact = 8 * (double) (u.sink_bytes + u.tail_bytes);
    rest = 8 * (double) usage_bytes(&u) - exact - s->all_per_token * packed;
    s->bits.charged += s->charged_per_token * packed;
    s->bits.charged_numbers += share * per_token * packed;
    s->bits.held += s->coded_per_token * packed + share * (exact + rest);
    s->bits.numbers += share * (double) u.numbers;
    return 0;
}

static void subject_count_other(struct subject *s)
{
    uint64_t bits, numbers;
    size_t n_tokens;
    double all;

    s->other.count(s->other.state, &bits, &numbers, &n_tokens);
    all = subject_coded_numbers(s) * (double) n_tokens;
    s->bits.charged += (double) bits;
    s->bits.charged_numbers += (double) numbers;
    s->bits.held += (double) bits + 16 * (all - (double) numbers);
    s->bits.numbers += all;
}

int subject_end(struct subject *s, bool count, struct errmsg *e)
{
    int r = 0;

    if (count && s->kind == KIND_TABLE)
        r = subject_count_table(s, e);
    if (count && s->kind == KIND_OTHER)
        subject_count_other(s);
    s->seq = kvc_seq_free(s->seq);
    if (s->kind == KIND_OTHER)
        s->other.end(s->other.state);
    s->n_tokens = 0;
    return r;
}
