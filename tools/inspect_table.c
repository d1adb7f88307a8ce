/* An allocation table for people and programs. Page sizes come from the library, as a real run would have them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve.h"
#include "alloc/table.h"
#include "alloc/table_account.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command.h"
#include "tools/handles.h"
#include "tools/inspect.h"
#include "tools/report.h"

enum {
    CHUNK_TOKENS = 64,       /* tokens in a page (kvcobra.h) */
    CONTEXT_TOKENS = 32768,  /* at which the paper says that bases weigh nothing */
};

/* by enum prediction */
static const char *const prediction_texts[] = { "", ", V predicted from K", ", V predicted from all K of its layer" };

struct inspected {
    const char *path;
    const struct table *t;
    kvc_model_info info;
};

static int page_sizes(struct inspected *x, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    const struct geometry *g = &x->t->geometry;
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry = { .struct_bytes = sizeof(id.geometry),
                      .n_layers = g->n_layers,
                      .n_heads = g->n_heads,
                      .n_kv_heads = g->n_kv_heads,
                      .head_dim = g->d,
                      .n_rot = g->n_rot,
                      .attn_scale = g->attn_scale,
                      .rope_freq = g->freq },
    };
    kvc_model *m; /* belongs to the client */
    int r;

    memcpy(id.model_digest, x->t->model_digest, sizeof(id.model_digest));
    r = client_open(NULL, &c, e);
    if (r < 0)
        return r;
    x->info.struct_bytes = sizeof(x->info);
    r = kvc_model_open_table(c, &id, x->t->bytes, x->t->n_bytes, &m);
    if (r == 0)
        r = kvc_model_get_info(m, &x->info);
    return r < 0 ? fail(e, r, "%s: %s", x->path, kvc_last_error(c)) : 0;
}

static uint64_t code_bits(const struct table *t, enum side side)
{
    uint64_t sum = 0;

    for (uint32_t i = (uint32_t) side; i < head_side_count(&t->geometry); i += 2)
        sum += t->codecs[i].code_bits;
    return sum;
}

static double side_bpd(const struct table *t, enum side side)
{
    const struct geometry *g = &t->geometry;

    return (double) code_bits(t, side) / ((double) g->n_layers * g->n_kv_heads * g->d);
}

/* Coordinates that carry bits. */
static unsigned stored(const struct codec *c)
{
    unsigned n = 0;

    for (unsigned i = 0; i < c->n_half; i++)
        n += c->bits[i] > 0 ? 8 : 0;
    return n;
}

/* The paper's effective bits: what is charged per number, and what is stored once. */
static void print_account(const struct table *t)
{
    struct table_account a;
    char size[HUMAN_BYTES];

    table_account(t, &a);
    printf("  charged    %.3f per number without padding (K %.3f, V %.3f), 0 beside the codes of a token\n", a.nominal,
           a.nominal_bpd[SIDE_K], a.nominal_bpd[SIDE_V]);
    printf("  once       %s of means, bases and levels: %.3f bits per number of %u tokens\n",
           human_bytes(a.fixed_bytes, size), table_account_fixed_bpd(t, &a, CONTEXT_TOKENS), CONTEXT_TOKENS);
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

static void print_head(const struct inspected *x)
{
    const struct table *t = x->t;
    const struct geometry *g = &t->geometry;
    uint64_t per_token = (code_bits(t, SIDE_K) + code_bits(t, SIDE_V)) / 8;
    uint64_t exact = (uint64_t) head_side_count(g) * g->d * 2;
    char digest[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

    printf("%s: an allocation table, %s\n\n", x->path, human_bytes(t->n_bytes, size));
    printf("  table      %s\n", digest_hex(t->digest, digest));
    printf("  model      %s\n", digest_hex(t->model_digest, digest));
    printf("  geometry   %u layers, %u query heads on %u KV heads of dimension %u, %u of it rotated\n", g->n_layers,
           g->n_heads, g->n_kv_heads, g->d, g->n_rot);
    printf("  bits       %.3f per number (K %.3f, V %.3f)%s; first %u tokens exact\n", t->bpd_code,
           side_bpd(t, SIDE_K), side_bpd(t, SIDE_V), prediction_texts[t->v_from], t->n_sink);
    print_account(t);
    printf("  per token  %ju bytes of codes, binary16 takes %ju", (uintmax_t) per_token, (uintmax_t) exact);
    if (per_token > 0)
        printf(" (%.2f times as much)", (double) exact / (double) per_token);
    printf("\n  per page   %ju bytes for %u tokens; %ju for the first of a sequence, with its exact tokens\n",
           (uintmax_t) x->info.page_bytes, CHUNK_TOKENS, (uintmax_t) x->info.first_page_bytes);
}

/* How many coordinates have how many bits. */
static int print_widths(const struct table *t)
{
    _cleanup_(report_freep) struct report *r = report_new(">bits\t>K coordinates\t>V coordinates");
    uint64_t count[2][TABLE_BITS_MAX + 1] = { { 0 } };

    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++) {
        const struct codec *c = &t->codecs[i];

        for (unsigned k = 0; k < c->n_half; k++)
            count[i % 2][c->bits[k]] += 8;
    }
    for (unsigned b = TABLE_BITS_MAX; b > 0; b--)
        if (count[SIDE_K][b] + count[SIDE_V][b] > 0)
            report_row(r, "%u\t%ju\t%ju", b, (uintmax_t) count[SIDE_K][b], (uintmax_t) count[SIDE_V][b]);
    return report_print(r, stdout);
}

/* ">layer\t>head 0\t>head 1..." */
static char *map_columns(uint32_t n_heads)
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(fclosep) FILE *f = NULL;
    size_t n;

    f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    fputs(">layer", f);
    for (uint32_t h = 0; h < n_heads; h++)
        fprintf(f, "\t>head %u", h);
    if (fclose(take_ptr(f)) != 0)
        return NULL;
    return take_ptr(text);
}

static int add_map_row(struct report *r, const struct table *t, uint32_t layer, enum side side)
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(fclosep) FILE *f = NULL;
    size_t n;

    f = open_memstream(&text, &n);
    if (!f)
        return -1;
    fprintf(f, "%u", layer);
    for (uint32_t h = 0; h < t->geometry.n_kv_heads; h++) {
        const struct codec *c = table_codec(t, layer, h, side);

        fprintf(f, "\t%u %5.2f", stored(c), (double) c->code_bits / t->geometry.d);
    }
    if (fclose(take_ptr(f)) != 0)
        return -1;
    report_row(r, "%s", text);
    return 0;
}

static int print_map(const struct table *t, enum side side)
{
    _cleanup_(freep) char *columns = map_columns(t->geometry.n_kv_heads);
    _cleanup_(report_freep) struct report *r = columns ? report_new(columns) : NULL;

    printf("\n%s: stored coordinates and bits per number\n", side == SIDE_K ? "Keys" : "Values");
    for (uint32_t layer = 0; layer < t->geometry.n_layers; layer++)
        if (add_map_row(r, t, layer, side) < 0)
            return -1;
    return report_print(r, stdout);
}

/* Indented if it is the JSON it should be; the table's reader has seen to it that there are no control characters. */
static void print_provenance(const struct table *t)
{
    json_t *json = json_loads(t->provenance, 0, NULL);
    _cleanup_(freep) char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;

    json_decref(json);
    printf("\nMade from\n%s\n", text ? text : t->provenance);
}

static int print_text(const struct inspected *x)
{
    print_head(x);
    putchar('\n');
    if (print_widths(x->t) < 0 || print_map(x->t, SIDE_K) < 0 || print_map(x->t, SIDE_V) < 0)
        return command_fail("out of memory");
    print_provenance(x->t);
    return COMMAND_OK;
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static json_t *codec_json(const struct table *t, uint32_t i)
{
    const struct codec *c = &t->codecs[i];
    json_t *bits = json_array();

    for (unsigned k = 0; k < c->n_half; k++)
        (void) json_array_append_new(bits, json_integer(c->bits[k]));
    return json_pack("{s:i, s:i, s:s, s:i, s:i, s:o}", "layer", (int) (i / 2 / t->geometry.n_kv_heads), "head",
                     (int) (i / 2 % t->geometry.n_kv_heads), "side", i % 2 ? "V" : "K", "coordinates",
                     (int) stored(c), "code_bits", (int) c->code_bits, "bits", bits);
}

static json_t *codecs_json(const struct table *t)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++)
        if (json_array_append_new(all, codec_json(t, i)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

static json_t *provenance_json(const struct table *t)
{
    json_t *json = json_loads(t->provenance, 0, NULL);

    return json ? json : utf8_json(t->provenance, strlen(t->provenance));
}

static json_t *account_json(const struct table *t)
{
    struct table_account a;

    table_account(t, &a);
    return json_pack("{s:f, s:f, s:f, s:f, s:I, s:f}", "bpd_nominal", a.nominal, "k_bpd_nominal",
                     a.nominal_bpd[SIDE_K], "v_bpd_nominal", a.nominal_bpd[SIDE_V], "bpd_beside_codes", 0.0,
                     "fixed_bytes", (json_int_t) a.fixed_bytes, "fixed_bpd_32768",
                     table_account_fixed_bpd(t, &a, CONTEXT_TOKENS));
}

static int print_json(const struct inspected *x)
{
    const struct table *t = x->t;
    const struct geometry *g = &t->geometry;
    char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES], geometry[DIGEST_HEX_BYTES];

    return report_json(json_pack(
        "{s:s, s:s, s:s, s:s, s:{s:i, s:i, s:i, s:i, s:i, s:f}, s:i, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:o, s:o, "
        "s:o}",
        "kind", "table", "digest", digest_hex(t->digest, digest), "model_digest", digest_hex(t->model_digest, model),
        "geometry_digest", digest_hex(t->geometry_digest, geometry),
        "geometry", "n_layers", (int) g->n_layers, "n_heads", (int) g->n_heads, "n_kv_heads", (int) g->n_kv_heads,
        "d", (int) g->d, "n_rot", (int) g->n_rot, "attn_scale", g->attn_scale,
        "n_sink", (int) t->n_sink, "predict", prediction_name(t->v_from), "bpd_code", t->bpd_code, "k_bpd",
        side_bpd(t, SIDE_K), "v_bpd", side_bpd(t, SIDE_V), "file_bytes", (json_int_t) t->n_bytes,
        "code_bytes_per_token", (json_int_t) ((code_bits(t, SIDE_K) + code_bits(t, SIDE_V)) / 8), "page_bytes",
        (json_int_t) x->info.page_bytes, "first_page_bytes", (json_int_t) x->info.first_page_bytes, "codecs",
        codecs_json(t), "charged", account_json(t), "provenance", provenance_json(t)));
}

int inspect_table(const char *path, const void *bytes, size_t n_bytes, bool json)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct inspected x = { .path = path };
    struct errmsg e = { "" };

    if (table_parse(bytes, n_bytes, &t, &e) < 0)
        return command_fail("%s: %s", path, e.text);
    x.t = t;
    if (page_sizes(&x, &e) < 0)
        return command_fail("%s", e.text);
    return json ? print_json(&x) : print_text(&x);
}
