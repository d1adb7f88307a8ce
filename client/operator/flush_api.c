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

/* One message. *ret_again: the page is on its way to the disk; else the part is over. */
static int flush_send(kvc_client *c, struct prefix_call *p, kvc_flush_state *state, bool *ret_again)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__Flush m = KVCOBRA__FLUSH__INIT;
    const Kvcobra__FlushReply *got;
    int r;

    m.prefix = &p->message;
    m.goes_on = !prefix_call_is_last(p);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_FLUSH, &m.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->flush;
    state->pages += got->pages;
    state->held += got->held;
    *ret_again = got->on_the_way > 0;
    return *ret_again ? 0 : prefix_call_answered(c, p, got->keys);
}

int kvc_flush(kvc_client *c, const kvc_prefix_options *options, const uint32_t *tokens, size_t n_tokens,
              kvc_flush_state *ret_state)
{
    kvc_flush_state state = {.struct_bytes = sizeof(state)};
    kvc_prefix_options o = {.tenant = NULL};
    struct prefix_call p = {.n = 0};
    int64_t end_ms;
    bool again = false;
    int r = operator_enter(c, options != NULL, "kvc_flush: options are NULL");

    if (r == 0 && ret_state)
        r = options_check(ret_state->struct_bytes, sizeof(*ret_state), "kvc_flush_state", &c->error);
    if (r == 0)
        r = prefix_call_init(c, "kvc_flush", options, tokens, n_tokens, &o, &p);
    if (r < 0)
        return r;

    end_ms = clock_ms() + c->connection.request_ms;
    while (r == 0 && prefix_call_next(&p)) {
        if (again && clock_ms() >= end_ms)
            return fail(&c->error, -EAGAIN,
                        "the page is still on its way to the disk tier, which may keep it: flush again");
        if (again)
            (void) poll(NULL, 0, AGAIN_MS);
        r = flush_send(c, &p, &state, &again);
    }
    if (r < 0 || !ret_state)
        return r;

    state.tokens = p.n;
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_flush_state", &c->error);
}
