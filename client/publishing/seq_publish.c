/*
 * Publishing whole chunks in order of position, in batches of RESERVE, writing, COMMIT (publish.h). A page
 * that another client published first is leased in place of ours. A page that the daemon refuses stays
 * private, and the sequence is used as before.
 */
#include <errno.h>

#include "client/connection/clock.h"
#include "client/model/model_tables.h"
#include "client/sequence/reclaim.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_pool.h"
#include "client/sequence/seq_tail.h"

enum { WAIT_MS = 1000 }; /* for extents that the daemon creates */

/* Leading chunks that are published, or that a match left out. */
static size_t seq_publish_n_published(const struct kvc_seq *s)
{
    size_t n = 0;

    while (n < s->n_pages && !page_is_private(s->pages[n]))
        n++;
    return n;
}

/* Private chunks from @at on, at most a batch. */
static size_t seq_publish_count_private(const struct kvc_seq *s, size_t at, size_t n_chunks)
{
    size_t batch = s->model->client->connection.items_per_message, n = 0;

    while (n < batch && at + n < n_chunks && page_is_private(s->pages[at + n]))
        n++;
    return n;
}

/* @until_ms: how long a GPU's client waits for extents that the daemon creates. */
static int seq_publish_chunks(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks, int64_t until_ms)
{
    struct kvc_client *c = s->model->client;
    int r;

    r = model_table_reference(s->model, s->table);
    if (r == -ENOENT)
        return fail(&c->error, -ESTALE, "kvcobrad no longer has the table of this sequence");
    if (r < 0)
        return r;

    r = seq_derive_keys(s, tokens, n_chunks);

    for (size_t at = seq_publish_n_published(s); r == 0 && at < n_chunks;) {
        size_t n = seq_publish_count_private(s, at, n_chunks);

        if (n > 0)
            r = c->ops->publish(s, at, n, until_ms, &n);
        at += n > 0 ? n : 1;
    }

    return r;
}

/*
 * Packs the due chunks of all layers for which there are pages: an append claimed its own, those of a fork
 * are claimed now if the arena has room. @ret_n: chunks that every layer has packed.
 * Return: 0; -EIO, -ENOMEM of a GPU.
 */
static int seq_publish_pack_due(struct kvc_seq *s, size_t *ret_n)
{
    size_t due = seq_chunks_due(s, seq_length(s));
    int r = 0;

    while (due > s->n_pages && seq_claim(s, due) < 0)
        due--;
    errmsg_clear(&s->model->client->error);
    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++)
        r = s->ops->pack(s, i, due);
    *ret_n = seq_n_packed(s);
    return r;
}

/*
 * The daemon refuses pages of this sequence for now. Its private pages move to the heap: otherwise they would
 * fill the arena, which no commit could then empty, and every append of the client would fail.
 */
static void seq_publish_go_private(struct kvc_seq *s)
{
    s->on_heap = true;
    for (size_t i = 0; i < s->n_pages; i++)
        if (s->pages[i]->place == PAGE_ARENA)
            (void) page_move_to_heap(s->model->client, s->pages[i]); /* -ENOMEM: it stays in the arena */
}

/* Publishing frees room in the arena, into which a fork can pack more chunks:
 * repeated while there are more. */
static int seq_publish_commit(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens)
{
    int64_t until_ms = clock_ms() + WAIT_MS;
    size_t n_due = seq_chunks_due(s, seq_length(s)), n;
    int r = 0;

    do {
        size_t before = seq_n_packed(s);

        r = seq_publish_pack_due(s, &n);
        if (r < 0 || !model_is_connected(s->model))
            break;
        if (reclaim_yield(s->model)) {
            seq_publish_go_private(s);
            break;
        }

        r = seq_publish_chunks(s, tokens, n < n_tokens / CHUNK_TOKENS ? n : n_tokens / CHUNK_TOKENS,
                               until_ms);
        if (n == before)
            break;
    } while (r == 0 && n < n_due);
    client_flush(s->model->client);
    return r;
}

/* Publishes; repeats it once if the connection was lost meanwhile and could be opened again. */
static int seq_publish_commit_twice(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens)
{
    int r = seq_publish_commit(s, tokens, n_tokens);

    if (r != -ENOTCONN || model_connect(s->model) < 0)
        return r;
    r = seq_check_whole(s);
    if (r < 0)
        return r;

    return seq_publish_commit(s, tokens, n_tokens);
}

static int seq_publish_check(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens)
{
    struct errmsg *e = &s->model->client->error;
    int r;

    if (n_tokens > 0 && !tokens)
        return fail(e, -EINVAL, "kvc_seq_commit: tokens is NULL");
    if (!s->ops->is_shareable)
        return fail(e, -EINVAL, "an evaluation sequence cannot be published");
    if (!seq_is_between_steps(s))
        return fail(e, -EINVAL, "layers differ in length: commit between steps");

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    return s->ops->check_idle(s);
}

int kvc_seq_commit(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_published)
{
    struct kvc_model *m;
    int r = seq_enter(s);

    if (r < 0)
        return r;

    r = seq_publish_check(s, tokens, n_tokens);
    if (r < 0)
        return r;

    m = s->model;
    connection_check(&m->client->connection,
                     false); /* a commit that sends nothing must still notice a loss */
    (void) model_connect(m);
    r = seq_publish_commit_twice(s, tokens, n_tokens);
    if (r == 0) {
        watch_follow(m);
        watch_report(m);
    }

    seq_trim_tail(s);

    if (r == 0)
        s->on_heap = reclaim_extent(m) != 0;
    else if (r != -EINVAL)
        seq_publish_go_private(s);
    if (r < 0 && r != -ENOTCONN)
        return r;

    if (r == -ENOTCONN)
        errmsg_clear(&m->client->error);
    if (ret_published)
        *ret_published = model_is_connected(m) ? seq_publish_n_published(s) * CHUNK_TOKENS : 0;
    return 0;
}
