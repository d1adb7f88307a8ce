/* A sequence's life: birth, rolling back, branching, death. */
#include "client/sequence/seq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/connection/reconnect.h"
#include "client/gpu/seq_gpu.h"

int seq_enter(struct kvc_seq *s)
{
    return s ? client_enter(s->model->client) : -EINVAL;
}

int seq_check_whole(struct kvc_seq *s)
{
    if (s->first_lost == SIZE_MAX)
        return s->gpu ? seq_gpu_check_sound(s) : 0;
    return fail(&s->model->client->error, -ESTALE,
                "pages of this sequence were lost with the daemon from token %zu on: "
                "truncate it to that or less and compute the rest again",
                s->first_lost * CHUNK_TOKENS);
}

size_t seq_length(const struct kvc_seq *s)
{
    size_t length = SIZE_MAX;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length < length)
            length = s->layers[i].length;
    return length;
}

bool seq_is_between_steps(const struct kvc_seq *s)
{
    for (uint32_t i = 1; i < seq_n_layers(s); i++)
        if (s->layers[i].length != s->layers[0].length)
            return false;
    return true;
}

size_t seq_n_packed(const struct kvc_seq *s)
{
    size_t n = SIZE_MAX;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed < n)
            n = s->layers[i].n_packed;
    return n;
}

size_t kvc_seq_length(const kvc_seq *s)
{
    return s && client_is_ours(s->model->client) ? seq_length(s) : 0;
}

/* ---- birth and death ---- */

/* An empty sequence over table @t, of which it takes a reference. Without tail rows. */
static int seq_alloc(struct kvc_model *m, struct model_table *t, const void *salt, size_t salt_bytes,
                     struct kvc_seq **ret)
{
    struct kvc_seq *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return -ENOMEM;
    model_ref(m);
    s->model = m;
    s->table = model_table_ref(t);
    s->first_lost = SIZE_MAX;
    s->number = m->n_seqs_made;
    s->pages_moved = m->client->pages_moved;
    s->next = m->seqs;
    if (s->next)
        s->next->prev = s;
    m->seqs = s;
    s->layers = calloc(m->geometry.n_layers, sizeof(*s->layers));
    s->salt = malloc(salt_bytes > 0 ? salt_bytes : 1);
    if (!s->layers || !s->salt) {
        seq_free(s);
        return -ENOMEM;
    }
    if (salt_bytes > 0)
        memcpy(s->salt, salt, salt_bytes);
    s->salt_bytes = salt_bytes;
    r = m->client->gpu ? seq_gpu_init(s) : 0;
    if (r < 0) {
        seq_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void seq_free(struct kvc_seq *s)
{
    struct kvc_model *m = s->model;
    struct kvc_client *c = m->client;

    seq_drop_pages(s, 0);
    seq_gpu_deinit(s);
    client_flush(c);
    if (s->eval)
        eval_free(s);
    for (uint32_t i = 0; s->layers && i < m->geometry.n_layers; i++) {
        free(s->layers[i].rows[SIDE_K]);
        free(s->layers[i].rows[SIDE_V]);
    }
    free(s->layers);
    free(s->pages);
    free(s->payloads);
    free(s->salt);
    if (s->prev)
        s->prev->next = s->next;
    else
        m->seqs = s->next;
    if (s->next)
        s->next->prev = s->prev;
    model_table_unref(m, s->table);
    free(s);
    model_unref(m);
}

/* A sentence for what failed without one, for want of the host's memory: a GPU has its own. */
static int seq_explain(struct kvc_client *c, int r, const char *what)
{
    return r < 0 && !c->error.text[0] ? fail(&c->error, r, "out of memory for a %s", what) : r;
}

/* Everything a decode step needs, so that none of them allocates: two chunks of tail, some pages, attention.
 */
static int seq_prepare(struct kvc_seq *s)
{
    int r = seq_grow_tail(s, TAIL_ROWS_MIN);

    if (r == 0)
        r = seq_reserve_pages(s, 1);
    return r == 0 && s->gpu ? seq_gpu_refresh(s) : r;
}

static int new_seq(struct kvc_model *m, const void *salt, size_t salt_bytes, struct kvc_seq **ret)
{
    struct model_table *t;
    int r;

    connection_check(&m->client->connection, false);
    (void) model_connect(m);
    r = model_table_follow(m);

    if (r < 0)
        return r;
    watch_follow(m);
    t = watch_pick_table(m, salt, salt_bytes);
    r = seq_alloc(m, t, salt, salt_bytes, ret);
    model_table_unref(m, t);
    return seq_explain(m->client, r, "sequence");
}

int kvc_seq_new(kvc_model *m, const void *salt, size_t salt_bytes, kvc_seq **ret_seq)
{
    struct kvc_seq *s;
    int r;

    if (!m)
        return -EINVAL;
    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_seq || (salt_bytes > 0 && !salt))
        return fail(&m->client->error, -EINVAL, "kvc_seq_new: ret_seq is NULL, or salt is with %zu bytes",
                    salt_bytes);
    if (salt_bytes > KVC_SALT_BYTES_MAX)
        return fail(&m->client->error, -EINVAL, "salt of %zu bytes, at most %d: hash it", salt_bytes,
                    KVC_SALT_BYTES_MAX);
    r = new_seq(m, salt, salt_bytes, &s);
    if (r < 0)
        return r;
    r = seq_prepare(s);
    if (r < 0) {
        seq_free(s);
        return seq_explain(m->client, r, "sequence");
    }
    *ret_seq = s;
    return 0;
}

int kvc_seq_new_eval(kvc_model *m, const kvc_eval_options *o, kvc_seq **ret_seq)
{
    struct kvc_seq *s;
    int r;

    if (!m)
        return -EINVAL;
    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!o || !ret_seq)
        return fail(&m->client->error, -EINVAL, "kvc_seq_new_eval: options or ret_seq is NULL");
    if (m->client->gpu)
        return fail(&m->client->error, -EOPNOTSUPP,
                    "evaluation sequences are measured on the CPU: use a client without a GPU");
    r = new_seq(m, NULL, 0, &s);
    if (r < 0)
        return r;
    r = eval_init(s, o);
    if (r < 0) {
        seq_free(s);
        return r;
    }
    *ret_seq = s;
    return 0;
}

kvc_seq *kvc_seq_free(kvc_seq *s)
{
    if (s && client_is_ours(s->model->client)) /* keeps the sentence: callers free before they report */
        seq_free(s);
    return NULL;
}

/* ---- rolling back ---- */

/*
 * Exact as long as the cut lies in every layer's tail. Deeper, rows before it are codes only: the cut goes to
 * the chunk boundary, and what the tails held is dropped.
 */
static size_t seq_truncate_to(struct kvc_seq *s, size_t n)
{
    size_t length = seq_length(s), n_packed = 0;

    if (n > length)
        n = length;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed > n_packed)
            n_packed = s->layers[i].n_packed;
    if (n < n_packed * CHUNK_TOKENS) {
        n = n / CHUNK_TOKENS * CHUNK_TOKENS;
        n_packed = n / CHUNK_TOKENS;
    }
    for (uint32_t i = 0; i < seq_n_layers(s); i++) {
        s->layers[i].length = n;
        if (s->layers[i].n_packed > n_packed)
            s->layers[i].n_packed = n_packed;
    }
    seq_drop_pages(s, n_packed > chunks_due(n) ? n_packed : chunks_due(n));
    if (s->n_pages <= s->first_lost)
        s->first_lost = SIZE_MAX;
    return n;
}

int kvc_seq_truncate(kvc_seq *s, size_t n, size_t *ret_kept)
{
    int r = seq_enter(s);
    size_t kept;

    if (r < 0)
        return r;
    if (!ret_kept)
        return fail(&s->model->client->error, -EINVAL,
                    "kvc_seq_truncate: ret_kept is NULL: the cut may be deeper "
                    "than asked for");
    r = s->gpu ? gpu_check_not_capturing(s->model->client->gpu, &s->model->client->error) : 0;
    if (r < 0)
        return r;
    kept = s->eval ? eval_truncate(s, n) : seq_truncate_to(s, n);
    client_flush(s->model->client);
    if (s->gpu)
        r = seq_gpu_lengths_changed(s);
    if (r < 0)
        return r;
    *ret_kept = kept;
    return 0;
}

/* ---- branching ---- */

static int seq_copy_tails(struct kvc_seq *to, const struct kvc_seq *from)
{
    uint32_t n_heads = from->model->shard.n_heads, d = from->model->geometry.d;

    if (from->gpu)
        return seq_gpu_copy(to, from);
    for (uint32_t i = 0; i < seq_n_layers(from); i++) {
        const struct layer *l = &from->layers[i];
        size_t rows = l->length - l->n_packed * CHUNK_TOKENS;

        to->layers[i].length = l->length;
        to->layers[i].n_packed = l->n_packed;
        for (uint32_t h = 0; h < n_heads; h++)
            for (unsigned side = 0; side < 2; side++)
                memcpy(to->layers[i].rows[side] + seq_row(to, h, 0), l->rows[side] + seq_row(from, h, 0),
                       rows * d * sizeof(uint16_t));
    }
    return 0;
}

/* After a cut inside a step layers may differ in what is packed: level them, so that shared pages are whole.
 */
static int seq_level_packed(struct kvc_seq *s)
{
    size_t n = 0;
    int r = 0;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed > n)
            n = s->layers[i].n_packed;
    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++)
        r = seq_pack_layer(s, i, n);
    return r;
}

static int fork_seq(struct kvc_seq *s, struct kvc_seq **ret)
{
    struct kvc_seq *t;
    size_t n_packed;
    int r;

    r = seq_level_packed(s);
    if (r < 0)
        return r;
    n_packed = seq_n_packed(s);
    r = seq_alloc(s->model, s->table, s->salt, s->salt_bytes, &t);
    if (r < 0)
        return r;
    t->on_heap = s->on_heap;
    r = seq_grow_tail(t, s->tail_rows);
    if (r == 0)
        r = seq_reserve_pages(t, n_packed + 1);
    if (r == 0)
        r = seq_copy_tails(t, s);
    for (size_t i = 0; r == 0 && i < n_packed; i++)
        seq_add_page(t, page_ref(s->pages[i]));
    if (r == 0 && t->gpu)
        r = seq_gpu_refresh(t);
    if (r < 0) {
        seq_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

int kvc_seq_fork(kvc_seq *s, kvc_seq **ret_fork)
{
    int r = seq_enter(s);
    struct errmsg *e;

    if (r < 0)
        return r;
    e = &s->model->client->error;
    if (!ret_fork)
        return fail(e, -EINVAL, "kvc_seq_fork: ret_fork is NULL");
    if (s->eval)
        return fail(e, -EINVAL, "an evaluation sequence cannot be forked");
    if (!seq_is_between_steps(s))
        return fail(e, -EINVAL, "layers differ in length: fork between steps");
    r = seq_check_whole(s);
    if (r == 0 && s->gpu)
        r = gpu_check_not_capturing(s->model->client->gpu, e);
    if (r < 0)
        return r;
    return seq_explain(s->model->client, fork_seq(s, ret_fork), "fork");
}
