/* Reads the provenance that solve_provenance.c writes; see solve_options_read() in solve.h. */
#include <errno.h>
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* State of the reader, with the name of the first member that is missing or wrong. */
struct provenance_reader {
    const json_t *options;
    const char *bad;
};

static const json_t *provenance_read_get(struct provenance_reader *r, const char *key,
                                         bool right_type(const json_t *))
{
    const json_t *x = json_object_get(r->options, key);

    if (!r->bad && (!x || !right_type(x)))
        r->bad = key;
    return x;
}

static bool provenance_read_is_text(const json_t *x)
{
    return json_is_string(x);
}

static bool provenance_read_is_number(const json_t *x)
{
    return json_is_number(x);
}

static bool provenance_read_is_bool(const json_t *x)
{
    return json_is_boolean(x);
}

static bool provenance_read_is_count(const json_t *x)
{
    return json_is_integer(x) && json_integer_value(x) >= 0 && json_integer_value(x) <= INT32_MAX;
}

static const char *provenance_read_get_text(struct provenance_reader *r, const char *key)
{
    const char *text = json_string_value(provenance_read_get(r, key, provenance_read_is_text));

    return text ? text : "";
}

static double provenance_read_get_double(struct provenance_reader *r, const char *key)
{
    return json_number_value(provenance_read_get(r, key, provenance_read_is_number));
}

static bool provenance_read_get_bool(struct provenance_reader *r, const char *key)
{
    return json_is_true(provenance_read_get(r, key, provenance_read_is_bool));
}

static uint32_t provenance_read_get_count(struct provenance_reader *r, const char *key)
{
    return (uint32_t) json_integer_value(provenance_read_get(r, key, provenance_read_is_count));
}

static void provenance_read_check(struct provenance_reader *r, const char *key, int result)
{
    if (!r->bad && result < 0)
        r->bad = key;
}

static uint64_t provenance_read_get_seed(struct provenance_reader *r)
{
    const char *text = provenance_read_get_text(r, "seed");
    char *end;
    uint64_t x = strtoull(text, &end, 10);

    provenance_read_check(r, "seed", *text && !*end ? 0 : -EINVAL);
    return x;
}

/* [keys, values] into @ret, from @least to @most. Tables of earlier versions lack it: @absent. */
static void provenance_read_get_sides(struct provenance_reader *r, const char *key, double absent,
                                      double least, double most, double ret[static 2])
{
    const json_t *sides = json_object_get(r->options, key);

    for (unsigned side = 0; side < 2; side++) {
        const json_t *x = json_array_get(sides, side);

        ret[side] = sides ? json_number_value(x) : absent;
        provenance_read_check(
            r, key, ret[side] >= least && ret[side] <= most && (!sides || json_is_number(x)) ? 0 : -EINVAL);
    }
}

/* Whether there is a member @key, which tables of earlier versions lack; it must be @word. */
static bool provenance_read_has_word(struct provenance_reader *r, const char *key, const char *word)
{
    if (!json_object_get(r->options, key))
        return false;

    provenance_read_check(r, key, strcmp(provenance_read_get_text(r, key), word) == 0 ? 0 : -EINVAL);
    return true;
}

static void read_paper(struct provenance_reader *r, const struct solve_options *o, struct paper_options *ret)
{
    ret->B_min = provenance_read_get_double(r, "b_min_budget");
    ret->rank_step = provenance_read_get_count(r, "rank_step");
    ret->b_min = provenance_read_get_count(r, "b_min");
    ret->b_max = provenance_read_get_count(r, "b_max");
    if (o->method == METHOD_DP)
        return;

    ret->eta = provenance_read_get_double(r, "eta");
    ret->rounds = provenance_read_get_count(r, "rounds");
}

static void provenance_read_options(struct provenance_reader *r, struct solve_options *ret)
{
    enum method method = METHOD_BANDS;

    provenance_read_check(r, "method",
                          solve_method_from_name(provenance_read_get_text(r, "method"), &method));
    solve_options_for(ret, method, 0);
    provenance_read_check(r, "metric",
                          solve_metric_from_name(provenance_read_get_text(r, "metric"), &ret->metric));
    provenance_read_check(r, "curve",
                          solve_curve_from_name(provenance_read_get_text(r, "curve"), &ret->curve));
    provenance_read_check(
        r, "quantiser", solve_quantiser_from_name(provenance_read_get_text(r, "quantiser"), &ret->quantiser));
    if (json_object_get(r->options, "k_bpd")) {
        ret->k_bpd = provenance_read_get_double(r, "k_bpd");
        ret->v_bpd = provenance_read_get_double(r, "v_bpd");
    } else {
        ret->bpd = provenance_read_get_double(r, "bpd");
    }

    if (json_object_get(r->options, "temper"))
        ret->temper = provenance_read_get_double(r, "temper");
    ret->fit_levels = provenance_read_get_bool(r, "fit_levels");
    provenance_read_get_sides(r, "loading", 1, 1, SOLVE_LOADING_MAX, ret->loading);
    if (json_object_get(r->options, "loading_narrow"))
        provenance_read_get_sides(r, "loading_narrow", 1, 1, SOLVE_LOADING_MAX, ret->loading_narrow);
    else /* tables of earlier versions have one for all widths */
        memcpy(ret->loading_narrow, ret->loading, sizeof(ret->loading_narrow));
    provenance_read_get_sides(r, "contrast", 0, 0, 1, ret->contrast);
    ret->trellis_states = 0; /* tables of earlier versions have none */
    if (json_object_get(r->options, "trellis_states")) {
        double states = provenance_read_get_double(r, "trellis_states");

        provenance_read_check(r, "trellis_states", solve_trellis_exists(states) ? 0 : -EINVAL);
        ret->trellis_states = solve_trellis_exists(states) ? (uint32_t) states : 0;
    }
    ret->half_matrices = provenance_read_has_word(r, "matrices", "binary16");
    ret->blocks = provenance_read_has_word(r, "frame", "block");
    provenance_read_check(r, "decoder",
                          solve_decoder_from_name(provenance_read_get_text(r, "decoder"), &ret->decoder));
    provenance_read_check(r, "predict",
                          solve_prediction_from_name(provenance_read_get_text(r, "predict"), &ret->v_from));
    ret->depth_weights = provenance_read_get_bool(r, "depth_weights");
    /* tables of earlier versions were fitted to their own sources */
    ret->leave_out = json_object_get(r->options, "leave_out") && provenance_read_get_bool(r, "leave_out");
    if (json_object_get(r->options, "without")) {
        double without = provenance_read_get_double(r, "without");

        provenance_read_check(r, "without", without >= 1 && without <= STATS_DOMAINS_MAX ? 0 : -EINVAL);
        ret->without = without >= 1 && without <= STATS_DOMAINS_MAX ? (uint32_t) without : 0;
    }
    ret->floor_bpd = provenance_read_get_double(r, "floor_bpd");
    ret->ceil_bpd = provenance_read_get_double(r, "ceil_bpd");
    ret->seed = provenance_read_get_seed(r);
    if (method != METHOD_BANDS)
        read_paper(r, ret, &ret->paper);
    if (json_object_get(r->options, "levels_from")) /* needs another table, which the caller does not pass */
        provenance_read_check(r, "levels_from", -EINVAL);
    if (json_object_get(r->options, "only_layer"))
        provenance_read_check(r, "only_layer", -EINVAL);
}

int solve_options_read(const char *provenance, struct solve_options *ret,
                       uint8_t ret_statistics[static DIGEST_BYTES], struct errmsg *e)
{
    _cleanup_(json_decrefp) json_t *root = json_loads(provenance, 0, NULL);
    const char *hex = json_string_value(json_object_get(json_object_get(root, "statistics"), "sha256"));
    struct provenance_reader r = {.options = json_object_get(root, "options")};
    uint8_t digest[DIGEST_BYTES];
    struct solve_options o;
    size_t n = 0;

    if (!r.options || !hex || sodium_hex2bin(digest, sizeof(digest), hex, strlen(hex), NULL, &n, NULL) < 0 ||
        n != sizeof(digest))
        return fail(e, -ENODATA, "the table's provenance does not name its statistics and options");

    provenance_read_options(&r, &o);
    if (r.bad)
        return fail(e, -ENODATA,
                    "the table's provenance is incomplete: %s is missing or has an unknown value", r.bad);

    *ret = o;
    memcpy(ret_statistics, digest, sizeof(digest));
    return 0;
}
