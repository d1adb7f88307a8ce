/* See comparator_subject.h. */
#include "lab/eval/comparator_subject.h"

#include <errno.h>
#include <stdlib.h>

#include "base/errmsg.h"
#include "lab/comparators/cache.h"
#include "lab/comparators/comparator.h"
#include "tools/eval/subject.h"

struct comparator_subject {
    struct comparator_codec *codec;
    struct comparator_cache *cache;
};

static int comparator_subject_begin(void *state, const struct subject_options *so, size_t n_tokens,
                                    struct kv_cache *ret_cache, struct errmsg *e)
{
    struct comparator_subject *s = state;
    const struct comparator_cache_options o = {
        .n_sink = so->n_sink,
        .n_recent = so->n_recent,
        .sides = so->sides,
        .first_layer = so->first_layer,
        .n_layers = so->n_layers,
    };
    int r = comparator_cache_new(s->codec, &o, n_tokens, &s->cache, e);

    if (r < 0)
        return r;

    *ret_cache = comparator_cache_ops(s->cache);
    return 0;
}

static void comparator_subject_count(void *state, uint64_t *ret_bits, uint64_t *ret_numbers,
                                     size_t *ret_tokens)
{
    const struct comparator_subject *s = state;

    comparator_cache_usage(s->cache, ret_bits, ret_numbers);
    *ret_tokens = comparator_cache_tokens(s->cache);
}

static void comparator_subject_end(void *state)
{
    struct comparator_subject *s = state;

    s->cache = comparator_cache_free(s->cache);
}

static void comparator_subject_free(void *state)
{
    struct comparator_subject *s = state;

    comparator_codec_free(s->codec);
    free(s);
}

static json_t *comparator_subject_describe(const void *state)
{
    const struct comparator *c = ((const struct comparator_subject *) state)->codec->what;

    return json_pack("{s:s, s:s, s:s}", "what", c->what, "citation", c->citation, "keys",
                     c->post_rope ? "after RoPE" : "before RoPE");
}

int comparator_subject_new(struct engine *en, const struct comparator *c, const struct stats *stats,
                           const struct stats *rotated, const struct subject_options *o, struct subject **ret,
                           struct errmsg *e)
{
    const struct comparator_source source = {*engine_geometry(en), stats, rotated, en};
    struct comparator_subject *s = calloc(1, sizeof(*s));
    const struct subject_other what = {
        .state = s,
        .begin = comparator_subject_begin,
        .count = comparator_subject_count,
        .end = comparator_subject_end,
        .free = comparator_subject_free,
        .describe = comparator_subject_describe,
    };
    int r;

    if (!s)
        return fail(e, -ENOMEM, "out of memory for %s", c->name);

    r = comparator_codec_new(c, &source, &s->codec, e);
    if (r < 0) {
        free(s);
        return r;
    }

    return subject_other_new(en, c->name, &what, o, ret, e);
}
