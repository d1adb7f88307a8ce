/* Flushing a prefix: kvc_flush(). */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/connection/clock.h"
#include "client/kvcobra-operator.h"
#include "client/operator/operator_call.h"

enum { CHUNK_KEYS_BYTES = 32, AGAIN_MS = 10 };

static int flush_check(kvc_client *c, const kvc_flush_options *from, kvc_flush_options *ret,
                       const uint32_t *tokens, size_t n_tokens, const kvc_flush_state *state)
{
    int r = options_read(ret, sizeof(*ret), from, sizeof(*ret), "kvc_flush_options", &c->error);

    if (r == 0 && state)
        r = options_check(state->struct_bytes, sizeof(*state), "kvc_flush_state", &c->error);
    if (r < 0)
        return r;
    if (!ret->tenant || !ret->table_digest || !tokens)
        return fail(&c->error, -EINVAL, "kvc_flush: tenant, table_digest or tokens are NULL");
    if (ret->salt_bytes > KVC_SALT_BYTES_MAX || (ret->salt_bytes > 0 && !ret->salt))
        return fail(&c->error, -EINVAL, "kvc_flush: a salt of %zu bytes, at most %d, or it is NULL",
                    ret->salt_bytes, KVC_SALT_BYTES_MAX);
    if (n_tokens < KVC_CHUNK_TOKENS)
        return fail(&c->error, -EINVAL, "a prefix of %zu tokens has no page: pages have %d tokens", n_tokens,
                    KVC_CHUNK_TOKENS);

    return 0;
}

/* One message: the keys of the reply take the place of @keys. */
static int flush_send(kvc_client *c, Kvcobra__Flush *m, uint8_t keys[static CHUNK_KEYS_BYTES], bool has_keys,
                      kvc_flush_state *state, bool *ret_again)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    const Kvcobra__FlushReply *got;
    int r;

    m->parent_keys = (ProtobufCBinaryData){has_keys ? CHUNK_KEYS_BYTES : 0, keys};
    r = operator_call(c, KVCOBRA__REQUEST__BODY_FLUSH, &m->base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->flush;
    if (!bytes_are(got->keys, CHUNK_KEYS_BYTES))
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: keys of %zu bytes", got->keys.len);

    if (m->goes_on)
        memcpy(keys, got->keys.data, CHUNK_KEYS_BYTES);
    state->pages += got->pages;
    state->held += got->held;
    *ret_again = got->on_the_way > 0;
    return 0;
}

/* The last part again, while the page is on its way to the disk. */
static int flush_send_last(kvc_client *c, Kvcobra__Flush *m, uint8_t keys[static CHUNK_KEYS_BYTES],
                           bool has_keys, kvc_flush_state *state)
{
    int64_t end_ms = clock_ms() + c->connection.request_ms;
    bool again = false;
    int r;

    m->goes_on = false;
    do {
        if (again)
            (void) poll(NULL, 0, AGAIN_MS);
        r = flush_send(c, m, keys, has_keys, state, &again);
    } while (r == 0 && again && clock_ms() < end_ms);

    return r == 0 && again
               ? fail(&c->error, -EAGAIN,
                      "the page is still on its way to the disk tier, which may keep it: flush again")
               : r;
}

int kvc_flush(kvc_client *c, const kvc_flush_options *options, const uint32_t *tokens, size_t n_tokens,
              kvc_flush_state *ret_state)
{
    Kvcobra__Flush m = KVCOBRA__FLUSH__INIT;
    kvc_flush_state state = {.struct_bytes = sizeof(state)};
    uint8_t keys[CHUNK_KEYS_BYTES];
    kvc_flush_options o = {.tenant = NULL};
    size_t at = 0, n = n_tokens / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS, part;
    bool again;
    int r;

    r = operator_enter(c, options != NULL, "kvc_flush: options are NULL");
    if (r == 0)
        r = flush_check(c, options, &o, tokens, n_tokens, ret_state);
    if (r < 0)
        return r;

    m.tenant = (char *) o.tenant;
    m.table_digest = operator_digest(o.table_digest);
    m.salt = (ProtobufCBinaryData){o.salt_bytes, (uint8_t *) o.salt};
    m.first_kv_head = o.first_kv_head;
    m.n_kv_heads = o.n_kv_heads;
    m.goes_on = true;
    part = c->connection.items_per_message / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS;
    if (part == 0)
        return fail(&c->error, -EPROTO, "kvcobrad takes fewer than %d items in a message", KVC_CHUNK_TOKENS);

    for (; n - at > part; at += part) {
        m.tokens = (uint32_t *) tokens + at;
        m.n_tokens = part;
        r = flush_send(c, &m, keys, at > 0, &state, &again);
        if (r < 0)
            return r;
    }

    m.tokens = (uint32_t *) tokens + at;
    m.n_tokens = n - at;
    r = flush_send_last(c, &m, keys, at > 0, &state);
    if (r < 0 || !ret_state)
        return r;

    state.tokens = n;
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_flush_state", &c->error);
}
