/* See prefix.h. */
#include "daemon/operator/prefix.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/requests/conn.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"

static int prefix_read_shard(struct request *rq, const Kvcobra__Prefix *m, struct prefix *p)
{
    uint32_t n = p->table->table->geometry.n_kv_heads;

    p->shard = (struct shard){m->first_kv_head, m->n_kv_heads};
    if (m->n_kv_heads == 0 && m->first_kv_head == 0)
        p->shard.n_heads = n;
    if (p->shard.n_heads == 0 || p->shard.first_head > n || p->shard.n_heads > n - p->shard.first_head)
        return fail(&rq->error, -EINVAL, "%" PRIu32 " KV heads from %" PRIu32 " on, of a table with %" PRIu32,
                    m->n_kv_heads, m->first_kv_head, n);

    return 0;
}

static int prefix_read_subject(struct request *rq, const Kvcobra__Prefix *m, struct prefix *p)
{
    struct table_entry *table;
    int r;

    p->tenant = rq->conn->is_operator ? devices_find_tenant(rq->server->devices, m->tenant) : rq->tenant;
    if (!rq->conn->is_operator && m->tenant[0] != '\0' && strcmp(m->tenant, p->tenant->name) != 0)
        return fail(&rq->error, -EPERM, "this is a client of tenant %s: only operators ask about others",
                    p->tenant->name);
    if (!p->tenant)
        return fail(&rq->error, -ENOENT,
                    "there is no tenant \"%.40s\": \"kvcobra status\" lists those with sessions or pages",
                    m->tenant);

    r = request_find_table(rq, &m->table_digest, &table);
    if (r < 0)
        return r;
    if (!table->table)
        return fail(&rq->error, -ESTALE, "the table is retired or rejected: it has no pages");

    p->table = table;
    return prefix_read_shard(rq, m, p);
}

int prefix_read(struct request *rq, const Kvcobra__Prefix *m, struct prefix *ret)
{
    struct prefix p = {.tenant = NULL};
    int r;

    if (!m)
        return fail(&rq->error, -EINVAL, "the request names no prefix");

    r = prefix_read_subject(rq, m, &p);
    if (r < 0)
        return r;
    if (m->n_tokens == 0 || m->n_tokens % CHUNK_TOKENS != 0)
        return fail(&rq->error, -EINVAL, "%zu tokens are not whole chunks of %d", m->n_tokens, CHUNK_TOKENS);
    if (m->salt.len > CHUNK_SALT_BYTES_MAX)
        return fail(&rq->error, -EINVAL, "the salt has %zu bytes, at most %d", m->salt.len,
                    CHUNK_SALT_BYTES_MAX);

    if (m->parent_keys.len != 0) {
        r = request_check_bytes(rq, &m->parent_keys, sizeof(p.keys), "parent keys");
        if (r < 0)
            return r;

        memcpy(p.keys, m->parent_keys.data, sizeof(p.keys));
        p.has_parent = true;
    }

    p.n_chunks = m->n_tokens / CHUNK_TOKENS;
    *ret = p;
    return 0;
}

void prefix_step(struct prefix *p, const Kvcobra__Prefix *m, const uint32_t tokens[static CHUNK_TOKENS],
                 bool is_first)
{
    struct chunk_identity id = {
        .table_digest = p->table->digest,
        .model_digest = p->table->model_digest,
        .first_head = p->shard.first_head,
        .n_heads = p->shard.n_heads,
        .salt = m->salt.data,
        .salt_bytes = m->salt.len,
    };

    p->page_class = is_first ? PAGE_FIRST : PAGE_REST;
    for (int k = 0; k < PREFIX_KEYS; k++) {
        struct chunk_key parent = p->keys[k];

        id.repeatable = k == 1;
        chunk_key_derive(p->tenant->index_key, &id, is_first ? NULL : &parent, tokens, &p->keys[k]);
    }
}

void prefix_next(struct prefix *p, const Kvcobra__Prefix *m, size_t i)
{
    prefix_step(p, m, m->tokens + i * CHUNK_TOKENS, !p->has_parent && i == 0);
}

ProtobufCBinaryData prefix_keys(struct request *rq, const struct prefix *p)
{
    struct reply_scratch *scratch = rq->server->scratch;

    _Static_assert(sizeof(p->keys) <= sizeof(scratch->digest), "keys fit the scratch");
    memcpy(scratch->digest, p->keys, sizeof(p->keys));
    return bytes_view(scratch->digest, sizeof(p->keys));
}

bool prefix_has_tiers(const struct request *rq, const struct prefix *p)
{
    return rq->server->offload && !store_of(p->tenant)->pool.on_gpu;
}

int prefix_subject(struct request *rq, const struct prefix *p, int i, struct offload_subject *ret)
{
    struct page_layout layout;
    struct offload_subject s = {.account = p->tenant->account, .key = p->keys[i]};
    int r = page_layout_init(&layout, p->table->table, p->shard);

    if (r < 0)
        return fail(&rq->error, r, "pages of these KV heads cannot be stored alone");

    tier_group_init(&s.group, s.account->name);
    memcpy(s.group.table_digest, p->table->digest, sizeof(s.group.table_digest));
    s.group.first_head = (uint16_t) p->shard.first_head;
    s.group.n_heads = (uint16_t) p->shard.n_heads;
    s.group.page_class = (uint8_t) p->page_class;
    s.group.page_bytes = layout.page_bytes[p->page_class];
    page_layout_deinit(&layout);
    *ret = s;
    return 0;
}
