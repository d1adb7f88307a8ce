/*
 * Publishing: whole chunks, parents first, in batches of RESERVE, fill, COMMIT (publish.h). A page that
 * somebody else published first is leased in place of ours. What the daemon refuses stays private, and the
 * sequence goes on.
 */
#include <errno.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/connection/reclaim.h"
#include "client/publishing/publish.h"
#include "client/connection/reconnect.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"

enum { MAKING_MS = 1000 };

/* Keys of the first @n chunks; those that a page has already must agree. */
static int seq_publish_derive_keys(struct kvc_seq *s, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct page *p = s->pages[i];
        struct chunk_key key;

        seq_chunk_key(s, i > 0 ? &s->pages[i - 1]->key : NULL, tokens + i * CHUNK_TOKENS, &key);
        if (p->has_key && memcmp(&p->key, &key, sizeof(key)) != 0)
            return fail(&s->model->client->error, -EINVAL,
                        "tokens %zu to %zu are not those that this chunk was "
                        "published or matched with",
                        i * CHUNK_TOKENS, (i + 1) * CHUNK_TOKENS - 1);
        p->key = key;
        p->has_key = true;
    }
    return 0;
}

static size_t seq_publish_n_published(const struct kvc_seq *s)
{
    size_t n = 0;

    while (n < s->n_pages && page_is_shared(s->pages[n]))
        n++;
    return n;
}

/* @until_ms: how long a GPU's client waits for extents that are being made. */
static int seq_publish_publish(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks, int64_t until_ms)
{
    struct kvc_client *c = s->model->client;
    size_t batch = c->connection.items_per_message;
    int r = model_table_reference(s->model, s->table);

    if (r == 0)
        r = seq_publish_derive_keys(s, tokens, n_chunks);
    else if (r == -ENOENT)
        r = fail(&c->error, -ESTALE, "kvcobrad does not have the table of this sequence any more");

    for (size_t at = seq_publish_n_published(s); r == 0 && at < n_chunks;) {
        size_t n = 0;

        while (n < batch && at + n < n_chunks && !page_is_shared(s->pages[at + n]))
            n++;
        if (n > 0)
            r = c->gpu ? publish_gpu(s, at, n, until_ms, &n) : publish_arena(s, at, n, &n);
        at += n > 0 ? n : 1;
    }
    return r;
}

/*
 * Packs in all layers what is due, as far as there is space for it: chunks that were claimed by an append
 * always, those of a fork only if the arena has room. @ret_n: chunks that every layer has. Return: 0; -EIO,
 * -ENOMEM of a GPU.
 */
static int seq_publish_pack_due(struct kvc_seq *s, size_t *ret_n)
{
    size_t due = chunks_due(seq_length(s));
    int r = 0;

    while (due > s->n_pages && seq_claim(s, due) < 0)
        due--;
    errmsg_clear(&s->model->client->error);
    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++)
        r = seq_pack_layer(s, i, due);
    *ret_n = seq_n_packed(s);
    return r;
}

/*
 * The daemon takes no more of this sequence, for now. It goes on on the heap and leaves the arena to others:
 * a full arena that nobody can empty would refuse every append of the client.
 */
static void seq_publish_go_private(struct kvc_seq *s)
{
    s->on_heap = true;
    for (size_t i = 0; i < s->n_pages; i++)
        if (s->pages[i]->place == PAGE_ARENA)
            (void) page_move_to_heap(s->model->client, s->pages[i]); /* out of memory: it stays where it is */
}

/* Publishing frees arena space, which lets a fork pack more: repeat while that helps. */
static int seq_publish_commit(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens)
{
    int64_t until_ms = clock_ms() + MAKING_MS;
    size_t n_due = chunks_due(seq_length(s)), n;
    int r = 0;

    do {
        size_t before = seq_n_packed(s);

        r = seq_publish_pack_due(s, &n);
        if (r < 0 || !model_is_connected(s->model))
            break;
        if (pressure_yield(s->model)) {
            seq_publish_go_private(s);
            break;
        }
        r = seq_publish_publish(s, tokens, n < n_tokens / CHUNK_TOKENS ? n : n_tokens / CHUNK_TOKENS,
                                until_ms);
        if (n == before)
            break;
    } while (r == 0 && n < n_due);
    client_flush(s->model->client);
    return r;
}

int kvc_seq_commit(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_published)
{
    int r = seq_enter(s);
    struct errmsg *e;

    if (r < 0)
        return r;
    e = &s->model->client->error;
    if (n_tokens > 0 && !tokens)
        return fail(e, -EINVAL, "kvc_seq_commit: tokens is NULL");
    if (s->eval)
        return fail(e, -EINVAL, "an evaluation sequence cannot be published");
    if (!seq_is_between_steps(s))
        return fail(e, -EINVAL, "layers differ in length: commit between steps");
    r = seq_check_whole(s);
    if (r == 0 && s->gpu)
        r = gpu_check_not_capturing(s->model->client->gpu, e);
    if (r < 0)
        return r;
    connection_check(&s->model->client->connection,
                     false); /* there may be nothing to say, yet something to know */
    (void) model_connect(s->model);
    r = seq_publish_commit(s, tokens, n_tokens);
    if (r == -ENOTCONN && model_connect(s->model) == 0) { /* it was lost, and is back */
        r = seq_check_whole(s);
        if (r == 0)
            r = seq_publish_commit(s, tokens, n_tokens);
    }
    if (r == 0) {
        watch_follow(s->model);
        watch_report(s->model);
    }
    seq_trim_tail(s);
    if (r < 0 && r != -EINVAL)
        seq_publish_go_private(s);
    if (r == 0)
        s->on_heap = pressure_extent(s->model) != 0;
    if (r == -ENOTCONN) {
        errmsg_clear(e);
        r = 0;
    }
    if (r < 0)
        return r;
    if (ret_published)
        *ret_published = model_is_connected(s->model) ? seq_publish_n_published(s) * CHUNK_TOKENS : 0;
    return 0;
}
