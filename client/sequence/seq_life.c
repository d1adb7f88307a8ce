/* Creating, freeing, truncating and forking sequences. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "client/model/model_table.h"
#include "client/model/model_tables.h"
#include "client/sequence/seq_eval.h"
#include "client/sequence/seq_match.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_options.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"

/* ---- creating and freeing ---- */

static void seq_life_add_to_model(struct kvc_seq *s, struct kvc_model *m)
{
    s->next = m->seqs;
    if (s->next)
        s->next->prev = s;
    m->seqs = s;
}

static void seq_life_remove_from_model(struct kvc_seq *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        s->model->seqs = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

/* Whether the sequence is of the form that its table holds, if this is an exact one. */
static int seq_life_check_exact(const struct kvc_seq *s)
{
    const struct exact_form *f = &s->table->table->exact;
    char form[EXACT_FORM_TEXT_BYTES];

    if (f->type == EXACT_NONE || (s->ops->is_shareable && (unsigned) s->keys == f->after_rope &&
                                  (unsigned) s->pairs == f->interleaved && !seq_codes_at_once(s)))
        return 0;

    return fail(&s->model->client->error, -EINVAL,
                "the table is an exact one (%s): its sequences have keys and pairs of this form, and neither "
                "KVC_SEQ_REPEATABLE nor evaluation",
                exact_form_print(f, form));
}

/* An empty sequence with table @t, on which it takes a reference. Without room in the tail. */
static int seq_life_new(struct kvc_model *m, struct model_table *t, const struct seq_ops *ops,
                        const kvc_seq_options *o, struct kvc_seq **ret)
{
    struct kvc_seq *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return -ENOMEM;

    model_ref(m);
    s->ops = ops;
    s->model = m;
    s->table = model_table_ref(t);
    s->first_lost = SIZE_MAX;
    s->number = m->n_seqs_made;
    s->pages_moved = m->client->pages_moved;
    seq_life_add_to_model(s, m);
    s->layers = calloc(m->geometry.n_layers, sizeof(*s->layers));
    s->salt = malloc(o->salt_bytes > 0 ? o->salt_bytes : 1);
    if (!s->layers || !s->salt) {
        seq_free(s);
        return -ENOMEM;
    }

    if (o->salt_bytes > 0)
        memcpy(s->salt, o->salt, o->salt_bytes);
    s->salt_bytes = o->salt_bytes;
    s->keys = (enum kvc_keys) o->keys;
    s->pairs = (enum kvc_pairs) o->pairs;
    s->flags = o->flags;
    s->fetch_ms = seq_options_fetch_ms(o);
    s->compute_tokens_per_s = o->compute_tokens_per_s;
    s->window = o->window;

    r = seq_life_check_exact(s);
    if (r == 0)
        r = ops->init(s);
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

    if (s->fetch)
        seq_fetch_cancel(s->fetch);
    seq_drop_pages(s, 0);
    s->ops->deinit(s);
    client_flush(m->client);
    free(s->layers);
    free(s->pages);
    free(s->payloads);
    free(s->salt);
    seq_life_remove_from_model(s);
    model_table_unref(m, s->table);
    free(s);
    model_unref(m);
}

/* Sets the sentence for lack of host memory; functions of a GPU have set their own. */
static int seq_life_explain(struct kvc_client *c, int r, const char *what)
{
    return r < 0 && !c->error.text[0] ? fail(&c->error, r, "out of memory for a %s", what) : r;
}

/* Two chunks of tail and some pages, so that a decode step allocates nothing. */
static int seq_life_reserve(struct kvc_seq *s)
{
    int r = seq_grow_tail(s, TAIL_ROWS_MIN);

    if (r < 0)
        return r;
    r = seq_reserve_pages(s, 1);
    if (r < 0)
        return r;

    return s->ops->refresh(s);
}

static const struct seq_ops *seq_life_ops_of(const struct kvc_client *c, const struct model_table *t)
{
    return c->ops->seqs_of ? c->ops->seqs_of(t) : c->ops->seqs;
}

/* An empty sequence with the table of the options, or the active one or the canary. @ops: of its kind; NULL:
 * those that the client has for the table. */
static int seq_life_new_of(struct kvc_model *m, const struct seq_ops *ops, const kvc_seq_options *o,
                           struct kvc_seq **ret)
{
    struct model_table *t;
    int r;

    connection_check(&m->client->connection, false);
    (void) model_connect(m);
    if (o->table_digest) {
        r = model_table_hold(m, o->table_digest, &t);
        if (r < 0)
            return r;
    } else {
        r = model_table_follow(m);
        if (r < 0)
            return r;

        watch_follow(m);
        t = watch_pick_table(m, o->salt, o->salt_bytes);
    }
    r = seq_life_new(m, t, ops ? ops : seq_life_ops_of(m->client, t), o, ret);
    model_table_unref(m, t);
    return seq_life_explain(m->client, r, "sequence");
}

int kvc_seq_new_with(kvc_model *m, const kvc_seq_options *o, kvc_seq **ret_seq)
{
    kvc_seq_options options;
    struct kvc_seq *s;
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_seq)
        return fail(&m->client->error, -EINVAL, "ret_seq of a new sequence is NULL");

    r = seq_options_read(m->client, o, &options);
    if (r < 0)
        return r;

    r = seq_life_new_of(m, NULL, &options, &s);
    if (r < 0)
        return r;

    r = seq_life_reserve(s);
    if (r < 0) {
        seq_free(s);
        return seq_life_explain(m->client, r, "sequence");
    }

    *ret_seq = s;
    return 0;
}

int kvc_seq_new(kvc_model *m, const void *salt, size_t salt_bytes, kvc_seq **ret_seq)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .salt = salt, .salt_bytes = salt_bytes};

    return kvc_seq_new_with(m, &o, ret_seq);
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

    r = seq_life_new_of(m, &seq_eval_ops, &(kvc_seq_options){0}, &s);
    if (r < 0)
        return r;

    r = seq_eval_set_options(s, o);
    if (r < 0) {
        seq_free(s);
        return r;
    }

    *ret_seq = s;
    return 0;
}

kvc_seq *kvc_seq_free(kvc_seq *s)
{
    if (s && client_is_ours(s->model->client)) /* keeps the error sentence: callers free, then print it */
        seq_free(s);
    return NULL;
}

/* ---- truncating ---- */

int kvc_seq_truncate(kvc_seq *s, size_t n, size_t *ret_kept)
{
    int r = seq_enter(s);
    size_t kept;

    if (r < 0)
        return r;

    if (!ret_kept)
        return fail(&s->model->client->error, -EINVAL,
                    "kvc_seq_truncate: ret_kept is NULL, but the cut may be deeper than n");

    r = s->ops->check_idle(s);
    if (r < 0)
        return r;

    kept = s->ops->truncate(s, n);
    client_flush(s->model->client);
    r = s->ops->lengths_changed(s);
    if (r < 0)
        return r;

    *ret_kept = kept;
    return 0;
}

/* ---- forking ---- */

/* After a cut inside a step layers may differ in what is packed: shared pages
 * must be complete in all layers. */
static int seq_life_level_packed(struct kvc_seq *s)
{
    size_t n = seq_n_packed_most(s);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++)
        r = s->ops->pack(s, i, n);
    return r;
}

/* Gives @to, new and empty, the tail of @from and references on its pages that have codes. */
static int seq_life_fill_fork(struct kvc_seq *to, const struct kvc_seq *from)
{
    size_t n_coded = seq_n_coded(from);
    int r;

    to->on_heap = from->on_heap;
    to->n_matched = from->n_matched;
    to->first_read = from->first_read;
    r = seq_grow_tail(to, from->tail_rows);
    if (r < 0)
        return r;

    r = seq_reserve_pages(to, n_coded + 1);
    if (r < 0)
        return r;

    r = to->ops->copy(to, from);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n_coded; i++)
        seq_add_page(to, page_ref(from->pages[i]));
    return to->ops->refresh(to);
}

static int seq_life_fork(struct kvc_seq *s, struct kvc_seq **ret)
{
    const kvc_seq_options o = {
        .salt = s->salt,
        .salt_bytes = s->salt_bytes,
        .keys = s->keys,
        .pairs = s->pairs,
        .flags = s->flags,
        .window = s->window,
    };
    struct kvc_seq *t;
    int r;

    r = seq_life_level_packed(s);
    if (r < 0)
        return r;

    r = seq_life_new(s->model, s->table, s->ops, &o, &t);
    if (r < 0)
        return r;

    t->fetch_ms = s->fetch_ms;
    t->compute_tokens_per_s = s->compute_tokens_per_s;
    r = seq_life_fill_fork(t, s);
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
    if (!s->ops->is_shareable)
        return fail(e, -EINVAL, "an evaluation sequence cannot be forked");
    if (!seq_is_between_steps(s))
        return fail(e, -EINVAL, "layers differ in length: fork between steps");

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    r = s->ops->check_idle(s);
    if (r < 0)
        return r;

    return seq_life_explain(s->model->client, seq_life_fork(s, ret_fork), "fork");
}
