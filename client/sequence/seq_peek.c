/* Looking up published chunks without a sequence: no lease, and no message but for a moved index. */
#include <errno.h>
#include <string.h>

#include "client/model/model_tables.h"
#include "client/sequence/reclaim.h"
#include "client/sequence/seq_options.h"
#include "client/sequence/seq_pool.h"
#include "proto/index.h"

/* A moved index is opened again, once: a caller that sees 0 may not match at all, and would see 0 forever. */
static enum index_result seq_peek_look_up(struct kvc_model *m, const struct chunk_key *key,
                                          struct index_hit *ret_hit)
{
    enum index_result result = index_lookup(&m->remote.reader, key, ret_hit);

    if (result == INDEX_MOVED && model_remote_open(m) == 0)
        result = index_lookup(&m->remote.reader, key, ret_hit);

    return result;
}

/* Leading chunks of @tokens that the index has. */
static size_t seq_peek_count(struct kvc_model *m, const struct chunk_identity *id, const uint32_t *tokens,
                             size_t n_chunks)
{
    struct chunk_key parent;
    size_t n = 0;

    while (n < n_chunks) {
        struct chunk_key key;
        struct index_hit hit;

        chunk_key_derive(m->remote.index_key, id, n > 0 ? &parent : NULL, tokens + n * CHUNK_TOKENS, &key);
        if (seq_peek_look_up(m, &key, &hit) != INDEX_FOUND || hit.page_class != (uint32_t) class_of_chunk(n))
            break;

        parent = key;
        n++;
    }

    return n;
}

/* The table of the sequence that would match. Return: 0; -ENODATA: there is none; as model_table_active(). */
static int seq_peek_table(struct kvc_model *m, const kvc_seq_options *o, uint8_t ret_digest[DIGEST_BYTES])
{
    if (!o->table_digest)
        return model_table_active(m, ret_digest);

    memcpy(ret_digest, o->table_digest, DIGEST_BYTES);
    return 0;
}

static int seq_peek_chunks(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                           size_t n_chunks, size_t *ret_n)
{
    uint8_t digest[DIGEST_BYTES];
    struct chunk_identity id;
    int r = seq_peek_table(m, o, digest);

    if (r < 0)
        return r;

    /* a match finds nothing while the daemon reclaims memory */
    id = seq_pool_identity(m, digest, o->salt, o->salt_bytes, o->flags);
    *ret_n = reclaim_extent(m) == 0 ? seq_peek_count(m, &id, tokens, n_chunks) : 0;
    return 0;
}

int kvc_model_peek(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                   size_t *ret_n)
{
    kvc_seq_options options;
    size_t n = 0;
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_n || (n_tokens > 0 && !tokens))
        return fail(&m->client->error, -EINVAL, "kvc_model_peek: tokens or ret_n is NULL");

    r = seq_options_read(m->client, o, &options);
    if (r < 0)
        return r;

    if (model_is_connected(m))
        r = seq_peek_chunks(m, &options, tokens, n_tokens / CHUNK_TOKENS, &n);
    /* without a daemon or an active table nothing is published for a new sequence */
    if (r < 0 && r != -ENOTCONN && r != -ENODATA)
        return r;

    errmsg_clear(&m->client->error);
    *ret_n = n * CHUNK_TOKENS;
    return 0;
}
