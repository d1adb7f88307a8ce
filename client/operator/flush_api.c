/* Flushing a prefix: kvc_flush(). */
#include <errno.h>
#include <poll.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/connection/clock.h"
#include "client/kvcobra-tiers.h"
#include "client/operator/operator_call.h"
#include "client/operator/prefix_call.h"

enum { AGAIN_MS = 10 };

/* Tokens of the present part whose pages go. */
static size_t flush_tokens_of_part(const struct prefix_call *p, size_t n_flushed)
{
    size_t end = p->at + p->message.n_tokens, first = p->n - n_flushed;

    if (end <= first)
        return 0;
    return first > p->at ? end - first : p->message.n_tokens;
}

/* One message. *ret_again: a page is on its way to the disk; else the part is over. */
static int flush_send(kvc_client *c, struct prefix_call *p, size_t n_flushed, kvc_flush_state *state,
                      bool *ret_again)
{
    size_t n = flush_tokens_of_part(p, n_flushed);
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__Flush m = KVCOBRA__FLUSH__INIT;
    const Kvcobra__FlushReply *got;
    int r;

    m.prefix = &p->message;
    m.goes_on = n == 0;
    m.chunks = (uint32_t) (n / KVC_CHUNK_TOKENS);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_FLUSH, &m.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->flush;
    state->pages += got->pages;
    state->held += got->held;
    *ret_again = got->on_the_way > 0;
    return *ret_again ? 0 : prefix_call_answered(c, p, got->keys);
}

/* @n: tokens of whole chunks. *ret: the number of tokens whose pages go. */
static int flush_check(kvc_client *c, const kvc_prefix_options *o, size_t n, size_t *ret)
{
    size_t flushed = o->n_flushed_tokens > 0 ? o->n_flushed_tokens : KVC_CHUNK_TOKENS;

    if (flushed % KVC_CHUNK_TOKENS != 0 || flushed > n)
        return fail(&c->error, -EINVAL,
                    "kvc_flush: n_flushed_tokens %zu is no multiple of %d up to the %zu tokens of the prefix",
                    flushed, KVC_CHUNK_TOKENS, n);
    *ret = flushed;
    return 0;
}

int kvc_flush(kvc_client *c, const kvc_prefix_options *options, const uint32_t *tokens, size_t n_tokens,
              kvc_flush_state *ret_state)
{
    kvc_flush_state state = {.struct_bytes = sizeof(state)};
    kvc_prefix_options o = {.tenant = NULL};
    struct prefix_call p = {.n = 0};
    size_t n_flushed = 0;
    int64_t end_ms;
    bool again = false;
    int r = operator_enter(c, options != NULL, "kvc_flush: options are NULL");

    if (r == 0 && ret_state)
        r = options_check(ret_state->struct_bytes, sizeof(*ret_state), "kvc_flush_state", &c->error);
    if (r == 0)
        r = prefix_call_init(c, "kvc_flush", options, tokens, n_tokens, &o, &p);
    if (r == 0)
        r = flush_check(c, &o, p.n, &n_flushed);
    if (r < 0)
        return r;

    end_ms = clock_ms() + c->connection.request_ms;
    while (r == 0 && prefix_call_next(&p)) {
        if (again && clock_ms() >= end_ms)
            return fail(&c->error, -EAGAIN,
                        "pages are still on their way to the disk tier, which may keep them: flush again");
        if (again)
            (void) poll(NULL, 0, AGAIN_MS);
        r = flush_send(c, &p, n_flushed, &state, &again);
    }
    if (r < 0 || !ret_state)
        return r;

    state.tokens = p.n;
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_flush_state", &c->error);
}
