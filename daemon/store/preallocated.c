/* See preallocated.h. */
#include "daemon/store/preallocated.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/store/pool.h"

void preallocated_init(struct preallocated *s, const struct preallocated_maker *maker, uint32_t n_wanted)
{
    assert(n_wanted <= PREALLOCATED_MAX);
    *s = (struct preallocated){.maker = *maker, .n_wanted = n_wanted};
}

void preallocated_deinit(struct preallocated *s)
{
    while (s->n > 0)
        pool_memory_deinit(&s->extents[--s->n]);
    *s = (struct preallocated){0};
}

static void preallocated_note_failure(struct preallocated *s, int err, const char *why, uint64_t now_ms)
{
    s->err = err;
    (void) fail(&s->why, err, "%s", why && why[0] ? why : strerror(-err));
    s->n_failed++;
    s->pause_ms = s->pause_ms == 0 ? PREALLOCATED_PAUSE_MS_MIN : s->pause_ms * 2;
    if (s->pause_ms > PREALLOCATED_PAUSE_MS_MAX)
        s->pause_ms = PREALLOCATED_PAUSE_MS_MAX;
    s->try_ms = now_ms + s->pause_ms;
}

void preallocated_tick(struct preallocated *s, uint32_t room, uint64_t now_ms)
{
    uint32_t wanted = s->n_wanted > 0 || !s->is_needed ? s->n_wanted : 1;
    struct errmsg why = {""};
    int r;

    if (s->is_being_created || s->n >= wanted || s->n >= room || now_ms < s->try_ms)
        return;

    r = s->maker.begin(s->maker.ctx, &why);
    if (r < 0)
        preallocated_note_failure(s, r, why.text, now_ms);
    else
        s->is_being_created = true;
}

int preallocated_take(struct preallocated *s, uint32_t room, uint64_t now_ms, struct pool_memory *ret,
                      struct errmsg *e)
{
    assert(room > 0);
    s->is_needed = s->n == 0;
    if (s->n > 0) {
        *ret = s->extents[0];
        memmove(s->extents, s->extents + 1, --s->n * sizeof(s->extents[0]));
        preallocated_tick(s, room - 1, now_ms);
        return 0;
    }

    preallocated_tick(s, room, now_ms);
    if (s->err == -ENOMEM)
        return fail(e, -ENOMEM,
                    "no memory is left on the device for another extent (%s): kvcobrad will try again",
                    s->why.text);
    if (s->err < 0)
        return fail(e, -EAGAIN, "an extent could not be created (%s): kvcobrad will try again, retry later",
                    s->why.text);

    return fail(e, -EINPROGRESS, "an extent is being created on the device: retry later");
}

void preallocated_add(struct preallocated *s, const struct pool_memory *m)
{
    assert(s->is_being_created && s->n < PREALLOCATED_MAX);
    s->is_being_created = false;
    s->err = 0;
    s->pause_ms = s->try_ms = 0;
    s->n_made++;
    s->extents[s->n++] = *m;
}

void preallocated_fail(struct preallocated *s, int err, const char *why, uint64_t now_ms)
{
    assert(s->is_being_created && err < 0);
    s->is_being_created = false;
    preallocated_note_failure(s, err, why, now_ms);
}
