/* See prefix_call.h. */
#include "client/operator/prefix_call.h"

#include <string.h>

#include "base/options.h"

static int prefix_call_check(kvc_client *c, const char *call, const kvc_prefix_options *o,
                             const uint32_t *tokens, size_t n_tokens)
{
    if (!o->tenant || !o->table_digest || !tokens)
        return fail(&c->error, -EINVAL, "%s: tenant, table_digest or tokens are NULL", call);
    if (o->salt_bytes > KVC_SALT_BYTES_MAX || (o->salt_bytes > 0 && !o->salt))
        return fail(&c->error, -EINVAL, "%s: a salt of %zu bytes, at most %d, or it is NULL", call,
                    o->salt_bytes, KVC_SALT_BYTES_MAX);
    if (n_tokens < KVC_CHUNK_TOKENS)
        return fail(&c->error, -EINVAL, "a prefix of %zu tokens has no page: pages have %d tokens", n_tokens,
                    KVC_CHUNK_TOKENS);

    return 0;
}

int prefix_call_init(kvc_client *c, const char *call, const kvc_prefix_options *options,
                     const uint32_t *tokens, size_t n_tokens, kvc_prefix_options *copy,
                     struct prefix_call *ret)
{
    struct prefix_call p = {.message = KVCOBRA__PREFIX__INIT};
    int r = options_read(copy, sizeof(*copy), options, sizeof(*copy), "kvc_prefix_options", &c->error);

    if (r == 0)
        r = prefix_call_check(c, call, copy, tokens, n_tokens);
    if (r < 0)
        return r;

    p.part = c->connection.items_per_message / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS;
    if (p.part == 0)
        return fail(&c->error, -EPROTO, "kvcobrad takes fewer than %d items in a message", KVC_CHUNK_TOKENS);

    p.tokens = tokens;
    p.n = n_tokens / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS;
    p.message.tenant = (char *) copy->tenant;
    p.message.table_digest = operator_bytes(copy->table_digest);
    p.message.salt = (ProtobufCBinaryData){copy->salt_bytes, (uint8_t *) copy->salt};
    p.message.first_kv_head = copy->first_kv_head;
    p.message.n_kv_heads = copy->n_kv_heads;
    *ret = p;
    return 0;
}

bool prefix_call_next(struct prefix_call *p)
{
    size_t left = p->n - p->at;

    p->message.parent_keys = (ProtobufCBinaryData){p->at > 0 ? sizeof(p->keys) : 0, p->keys};
    p->message.tokens = (uint32_t *) p->tokens + p->at;
    p->message.n_tokens = left < p->part ? left : p->part;
    return left > 0;
}

int prefix_call_answered(kvc_client *c, struct prefix_call *p, ProtobufCBinaryData keys)
{
    if (!bytes_are(keys, PREFIX_KEYS_BYTES))
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: keys of %zu bytes", keys.len);

    memcpy(p->keys, keys.data, sizeof(p->keys));
    p->at += p->message.n_tokens;
    return 0;
}
