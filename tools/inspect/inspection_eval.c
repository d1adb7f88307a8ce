/* What `kvcobra eval --json` measured with the inspected table; see inspection.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/stream_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/inspect/inspection.h"

enum { EVAL_FILE_BYTES_MAX = 16 << 20 };

/* Whether @row is a result of the table with the digest @hex. */
static bool inspection_eval_is_of(const json_t *row, const char *hex)
{
    const char *table = json_string_value(json_object_get(row, "table"));

    return table && strcmp(table, hex) == 0;
}

/* The result of the table: the document itself, or one of its rows; NULL: there is none. */
static const json_t *inspection_eval_find(const json_t *document, const char *hex)
{
    const json_t *rows = json_object_get(document, "rows"), *row;
    size_t i;

    if (inspection_eval_is_of(document, hex))
        return document;

    json_array_foreach((json_t *) rows, i, row)
    {
        if (inspection_eval_is_of(row, hex))
            return row;
    }
    return NULL;
}

/* Of all layers and both sides: the numbers of a part would be taken for those of the table. */
static bool inspection_eval_is_whole(const json_t *document, const struct geometry *g)
{
    const char *side = json_string_value(json_object_get(document, "side"));
    json_int_t n_layers = json_integer_value(json_object_get(document, "coded_layers"));

    return side && strcmp(side, "kv") == 0 && (n_layers == 0 || n_layers == (json_int_t) g->n_layers);
}

/* A finite number of @from that is at least @min; NaN: it is not there. */
static double inspection_eval_number(const json_t *from, const char *key, double min)
{
    const json_t *value = json_object_get(from, key);
    double x = json_is_number(value) ? json_number_value(value) : (double) NAN;

    return isfinite(x) && x >= min ? x : (double) NAN;
}

int inspection_read_eval(struct inspection *x, const char *path, struct errmsg *e)
{
    _cleanup_(json_decrefp) json_t *document = NULL;
    _cleanup_(freep) void *bytes = NULL;
    char hex[DIGEST_HEX_BYTES];
    struct inspect_eval got;
    const json_t *row;
    size_t n_bytes;
    int r = stream_file_read(path, EVAL_FILE_BYTES_MAX, &bytes, &n_bytes, e);

    if (r < 0)
        return r;

    document = json_loadb(bytes, n_bytes, 0, NULL);
    row = inspection_eval_find(document, digest_hex(x->table->digest, hex));
    if (!row)
        return fail(
            e, -EINVAL,
            "%s has no result of table %.12s: make it with 'kvcobra eval MODEL --table %s --text TEXT "
            "--json'",
            path, hex, x->request.table_path);
    if (!inspection_eval_is_whole(document, x->g))
        return fail(e, -EINVAL, "%s is of one side or of some layers: run eval without --side and --layers",
                    path);

    got = (struct inspect_eval){
        .ppl_exact = inspection_eval_number(document, "ppl_exact", 1),
        .ppl = inspection_eval_number(row, "ppl", 1),
        .kl = inspection_eval_number(row, "kl", -1),
        .tokens = inspection_eval_number(document, "tokens", 1),
        .window = inspection_eval_number(document, "window", 1),
    };
    if (isnan(got.ppl_exact + got.ppl + got.kl + got.tokens + got.window))
        return fail(e, -EINVAL, "%s lacks perplexity, KL, tokens or window: it needs an eval of one --text",
                    path);

    x->eval = got;
    x->has_eval = true;
    return 0;
}
