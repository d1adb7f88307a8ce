/* See seq_pool.h. */
#include "client/sequence/seq_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/checked.h"

struct chunk_identity seq_pool_identity(const struct kvc_model *m, const uint8_t *table_digest,
                                        const void *salt, size_t salt_bytes, uint32_t flags)
{
    return (struct chunk_identity){
        .table_digest = table_digest,
        .model_digest = m->model_digest,
        .first_head = m->shard.first_head,
        .n_heads = m->shard.n_heads,
        .salt = salt,
        .salt_bytes = salt_bytes,
        .repeatable = (flags & KVC_SEQ_REPEATABLE) != 0,
    };
}

void seq_chunk_key(const struct kvc_seq *s, const struct chunk_key *parent, const uint32_t *tokens,
                   struct chunk_key *ret_key)
{
    struct chunk_identity id =
        seq_pool_identity(s->model, s->table->table->digest, s->salt, s->salt_bytes, s->flags);

    chunk_key_derive(s->model->remote.index_key, &id, parent, tokens, ret_key);
}

int seq_derive_keys(struct kvc_seq *s, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct page *p = s->pages[i];
        struct chunk_key key;

        seq_chunk_key(s, i > 0 ? &s->pages[i - 1]->key : NULL, tokens + i * CHUNK_TOKENS, &key);
        if (p->has_key && memcmp(&p->key, &key, sizeof(key)) != 0)
            return fail(&s->model->client->error, -EINVAL,
                        "tokens %zu to %zu differ from those that this chunk was published or matched with",
                        i * CHUNK_TOKENS, (i + 1) * CHUNK_TOKENS - 1);

        p->key = key;
        p->has_key = true;
    }

    return 0;
}

void seq_page_header(const struct kvc_seq *s, size_t chunk, const struct chunk_key *key,
                     struct page_header *ret)
{
    const struct kvc_model *m = s->model;
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = table_is_exact(s->table->table) ? PAGE_CODEC_BYTES : PAGE_CODEC_HALF_TILES,
        .key = *key,
        .first_head = m->shard.first_head,
        .n_heads = m->shard.n_heads,
        .first_position = chunk * CHUNK_TOKENS,
        .n_tokens = CHUNK_TOKENS,
        .flags = chunk == 0 ? PAGE_FLAG_FIRST : 0,
        .payload_bytes = s->table->layout.payload_bytes[class_of_chunk(chunk)],
    };

    memcpy(h.table_digest, s->table->table->digest, sizeof(h.table_digest));
    memcpy(h.model_digest, m->model_digest, sizeof(h.model_digest));
    *ret = h;
}

static int seq_pool_check_header(const struct kvc_seq *s, size_t chunk, const struct chunk_key *key,
                                 const uint8_t *bytes)
{
    struct errmsg *e = &s->model->client->error;
    struct page_header want, have;
    uint8_t stored[PAGE_HEADER_BYTES];
    int r;

    r = page_header_load(bytes, &have, e);
    if (r < 0)
        return r;

    seq_page_header(s, chunk, key, &want);
    want.payload_crc32c = have.payload_crc32c; /* the daemon checked it at COMMIT */
    page_header_store(&want, stored);
    if (memcmp(stored, bytes, sizeof(stored)) != 0)
        return fail(e, -EPROTO, "kvcobrad granted a page that is not chunk %zu of this text", chunk);

    return 0;
}

int seq_map_granted(struct kvc_seq *s, size_t chunk, const struct chunk_key *key, const Kvcobra__PageRef *ref,
                    struct page_grant *ret)
{
    struct kvc_client *c = s->model->client;
    size_t page_bytes = s->table->layout.page_bytes[class_of_chunk(chunk)];
    struct mapped_extent *x;
    int r;

    r = extents_get(&c->extents, &c->connection, ref->extent, &x, &c->error);
    if (r < 0)
        return r;

    if (ref->bytes != page_bytes || ref->offset % PAGE_ALIGN != 0 ||
        !range_inside(ref->offset, page_bytes, x->bytes))
        r = fail(&c->error, -EPROTO,
                 "kvcobrad granted %" PRIu64 " bytes at %" PRIu64 " of an extent of %zu: a page has %zu",
                 ref->bytes, ref->offset, x->bytes, page_bytes);
    else if (x->host)
        r = seq_pool_check_header(s, chunk, key, x->host + ref->offset);
    if (r < 0) {
        extents_put(&c->extents, x);
        return r;
    }

    *ret = (struct page_grant){
        .extent = x,
        .offset = ref->offset,
        .slot = ref->slot,
        .generation = ref->generation,
    };
    return 0;
}

void seq_pool_lease_request(const struct kvc_seq *s, Kvcobra__LeaseItem **items, size_t n,
                            Kvcobra__Lease *ret)
{
    kvcobra__lease__init(ret);
    ret->model = s->model->remote.handle;
    ret->table_digest = (ProtobufCBinaryData){DIGEST_BYTES, s->table->table->digest};
    ret->items = items;
    ret->n_items = n;
}

int seq_pool_lease(struct kvc_seq *s, Kvcobra__LeaseItem **items, size_t n, struct reply *ret)
{
    struct kvc_client *c = s->model->client;
    Kvcobra__Lease lease;

    seq_pool_lease_request(s, items, n, &lease);
    return connection_call(&c->connection, KVCOBRA__REQUEST__BODY_LEASE, &lease, KVCOBRA__REPLY__BODY_LEASE,
                           ret, &c->error);
}
