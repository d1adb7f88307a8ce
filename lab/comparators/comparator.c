/* See comparator.h. */
#include "lab/comparators/comparator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

const struct comparator *const comparators[] = {
    &comparator_q8_0,
    &comparator_q4_0,
    &comparator_q4_0_rot,
    &comparator_kivi_2,
    &comparator_kivi_4,
    &comparator_kvquant_2,
    &comparator_kvquant_3,
    &comparator_kvquant_4,
    &comparator_gear_2,
    &comparator_quarot_3,
    &comparator_quarot_4,
    &comparator_turboquant_2,
    &comparator_turboquant_3,
    &comparator_turboquant_4,
    &comparator_svdq_2,
    &comparator_kqsvd_2,
    &comparator_kqsvd_3,
    &comparator_kqsvd_4,
    &comparator_oscar_2,
    &comparator_kvarn_2,
    &comparator_kvarn_3,
    &comparator_kvarn_4,
    &comparator_tcq_2,
    &comparator_tcq_3,
    NULL,
};

const struct comparator *comparator_find(const char *name)
{
    for (size_t i = 0; comparators[i]; i++)
        if (strcmp(comparators[i]->name, name) == 0)
            return comparators[i];
    return NULL;
}

int comparator_codec_new(const struct comparator *c, const struct comparator_source *s,
                         struct comparator_codec **ret_codec, struct errmsg *e)
{
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = calloc(1, sizeof(*codec));
    int r = 0;

    if (!codec)
        return fail(e, -ENOMEM, "out of memory for %s", c->name);

    codec->what = c;
    codec->geometry = s->geometry;
    if (c->calibrated && !s->stats)
        return fail(e, -EINVAL, "%s is calibrated: give the statistics with --stats", c->name);
    if (c->prepare)
        r = c->prepare(c, s, &codec->state, e);
    if (r < 0)
        return r;

    *ret_codec = take_ptr(codec);
    return 0;
}

struct comparator_codec *comparator_codec_free(struct comparator_codec *codec)
{
    if (!codec)
        return NULL;
    if (codec->what->release)
        codec->what->release(codec->state);
    else
        free(codec->state);
    free(codec);
    return NULL;
}
