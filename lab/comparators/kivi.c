/*
 * KIVI: keys per channel over groups of 32 tokens, values per token over groups of 32 channels, codes between
 * minimum and maximum. After RoPE. The original stores the newest 32 or 128 tokens in 16 bits; here --recent
 * does that for all formats.
 */
#include <errno.h>

#include "base/errmsg.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/range.h"

enum { GROUP = 32 };

static int kivi_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                        struct errmsg *e)
{
    (void) ret_state;
    if (s->geometry.d % GROUP != 0)
        return fail(e, -EINVAL,
                    "%s codes groups of %d channels, which %u channels per head do not divide into", c->name,
                    GROUP, s->geometry.d);

    return 0;
}

static int kivi_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                     size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t row = (size_t) codec->geometry.n_kv_heads * codec->geometry.d;
    uint64_t bits = 0;

    (void) layer;
    if (side == SIDE_V)
        for (size_t i = 0; i < n * row; i += GROUP)
            bits += range_code(x + i, GROUP, 1, codec->what->bits, ret_y + i);
    else
        for (size_t t = 0; t < n; t += GROUP)
            for (size_t i = 0; i < row; i++)
                bits += range_code(x + t * row + i, n - t < GROUP ? n - t : GROUP, row, codec->what->bits,
                                   ret_y + t * row + i);
    *ret_bits = bits;
    return 0;
}

#define WHAT "K per channel over 32 tokens, V per token over 32 channels, min/max"
#define CITATION "Liu et al., KIVI, ICML 2024"

const struct comparator comparator_kivi_2 = {
    .name = "kivi-2",
    .what = WHAT,
    .citation = CITATION,
    .bits = 2,
    .block_tokens = GROUP,
    .post_rope = true,
    .prepare = kivi_prepare,
    .code = kivi_code,
};
const struct comparator comparator_kivi_4 = {
    .name = "kivi-4",
    .what = WHAT,
    .citation = CITATION,
    .bits = 4,
    .block_tokens = GROUP,
    .post_rope = true,
    .prepare = kivi_prepare,
    .code = kivi_code,
};
