/* Looking up published chunks without a sequence: no lease, and no message but for a moved index. */
#include "client/sequence/seq_peek.h"

#include <errno.h>
#include <string.h>

#include "client/kvcobra-tiers.h"
#include "client/model/model_filter.h"
#include "client/model/model_tables.h"
#include "client/sequence/reclaim.h"
#include "client/sequence/seq_options.h"

/* A caller that sees no chunk of a moved index may not match at all, and would never see one. */
static enum index_result seq_peek_look_up(struct kvc_model *m, const struct chunk_key *key,
                                          struct index_hit *ret_hit)
{
    enum index_result result = index_lookup(&m->remote.reader, key, ret_hit);

    if (result == INDEX_MOVED && model_remote_open(m) == 0)
        result = index_lookup(&m->remote.reader, key, ret_hit);

    return result;
}

bool seq_peek_in_memory(struct kvc_model *m, const struct chunk_key *key, size_t chunk,
                        struct index_hit *ret_hit)
{
    return seq_peek_look_up(m, key, ret_hit) == INDEX_FOUND &&
           ret_hit->page_class == (uint32_t) class_of_chunk(chunk);
}

/* Leading chunks: in memory, and in any tier. */
struct seq_peek_counts {
    size_t memory, all;
    bool wants_all; /* else the count ends with memory */
};

/* Counts the leading chunks of @tokens. */
static void seq_peek_count(struct kvc_model *m, const struct chunk_identity *id, const uint32_t *tokens,
                           size_t n_chunks, struct seq_peek_counts *ret)
{
    struct chunk_key parent;
    size_t n = 0;

    for (; n < n_chunks; n++) {
        struct chunk_key key;
        struct index_hit hit;
        bool in_memory;

        chunk_key_derive(m->remote.index_key, id, n > 0 ? &parent : NULL, tokens + n * CHUNK_TOKENS, &key);
        in_memory = seq_peek_in_memory(m, &key, n, &hit);
        if (!in_memory && (!ret->wants_all || !model_filter_has(m, &key)))
            break;

        ret->memory += in_memory && ret->memory == n;
        parent = key;
    }

    ret->all = n;
}

int seq_peek_subject(struct kvc_model *m, const kvc_seq_options *o, struct seq_peek_subject *ret)
{
    int r = 0;

    if (o->table_digest)
        memcpy(ret->table_digest, o->table_digest, DIGEST_BYTES);
    else
        r = model_table_active(m, ret->table_digest);
    if (r == 0)
        ret->identity = seq_pool_identity(m, ret->table_digest, o->salt, o->salt_bytes, o->flags);
    return r;
}

static int seq_peek_chunks(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                           size_t n_chunks, struct seq_peek_counts *ret)
{
    struct seq_peek_subject subject;
    int r = seq_peek_subject(m, o, &subject);

    /* a match finds nothing while the daemon reclaims memory */
    if (r == 0 && reclaim_extent(m) == 0)
        seq_peek_count(m, &subject.identity, tokens, n_chunks, ret);
    return r;
}

/* After client_enter(). */
static int seq_peek(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                    struct seq_peek_counts *ret)
{
    kvc_seq_options options;
    int r = seq_options_read(m->client, o, &options);

    if (r < 0)
        return r;

    if (model_is_connected(m))
        r = seq_peek_chunks(m, &options, tokens, n_tokens / CHUNK_TOKENS, ret);
    /* without a daemon or an active table nothing is published for a new sequence */
    if (r < 0 && r != -ENOTCONN && r != -ENODATA)
        return r;

    errmsg_clear(&m->client->error);
    return 0;
}

int kvc_model_peek(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                   size_t *ret_n)
{
    struct seq_peek_counts counts = {0};
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_n || (n_tokens > 0 && !tokens))
        return fail(&m->client->error, -EINVAL, "kvc_model_peek: tokens or ret_n is NULL");

    r = seq_peek(m, o, tokens, n_tokens, &counts);
    if (r < 0)
        return r;

    *ret_n = counts.memory * CHUNK_TOKENS;
    return 0;
}

int kvc_model_peek_tiers(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                         size_t *ret_memory, size_t *ret_all)
{
    struct seq_peek_counts counts = {.wants_all = true};
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_memory || !ret_all || (n_tokens > 0 && !tokens))
        return fail(&m->client->error, -EINVAL, "kvc_model_peek_tiers: an argument is NULL");

    r = seq_peek(m, o, tokens, n_tokens, &counts);
    if (r < 0)
        return r;

    *ret_memory = counts.memory * CHUNK_TOKENS;
    *ret_all = counts.all * CHUNK_TOKENS;
    return 0;
}
