/* An allocation table as text on a terminal; see inspect.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/table/table.h"
#include "alloc/table/table_account.h"
#include "alloc/table/table_exact.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/inspect/inspect.h"

enum {
    CHUNK_TOKENS = 64,      /* tokens in a page (kvcobra.h) */
    CONTEXT_TOKENS = 32768, /* at which the paper calls the bases negligible */
    INDENT = 13,            /* of what follows a word at the left */
};

/* by enum prediction */
static const char *const prediction_texts[] = {
    "",
    "\n             values: only what the codes of their keys do not predict;",
    "\n             values: only what the codes of all keys of their layer do not predict;",
};

/* All 64 digits, or 12 on a terminal that would break them. */
static const char *inspect_table_digest(const unsigned char *digest, char ret[static DIGEST_HEX_BYTES])
{
    unsigned width = terminal_width(stdout);

    return width > 0 && width < INDENT + DIGEST_HEX_BYTES ? digest_short(digest, ret)
                                                          : digest_hex(digest, ret);
}

/* The paper's effective bits: r b per number, and what is stored once. */
static void inspect_table_print_account(const struct table *t)
{
    struct table_account a;
    char size[HUMAN_BYTES];

    table_account(t, &a);
    terminal_print(stdout, INDENT,
                   "  unpadded   %.3f per number (K %.3f, V %.3f), and nothing beside the codes of a token\n",
                   a.nominal, a.nominal_bpd[SIDE_K], a.nominal_bpd[SIDE_V]);
    terminal_print(stdout, INDENT,
                   "  process    %s of means, bases and levels, for all its sequences:\n"
                   "             %.3f bits per number of %u tokens\n",
                   human_bytes(a.fixed_bytes, size), table_account_fixed_bpd(t, &a, CONTEXT_TOKENS),
                   CONTEXT_TOKENS);
}

/* What every table has: file, names, geometry. */
static void inspect_table_print_names(const struct inspection *x, const char *kind)
{
    const struct table *t = x->table;
    const struct geometry *g = &t->geometry;
    char digest[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

    terminal_print(stdout, INDENT, "%s: an %s table, %s\n\n", x->request.table_path, kind,
                   human_bytes(t->n_bytes, size));
    terminal_print(stdout, INDENT, "  table      %s\n", inspect_table_digest(t->digest, digest));
    terminal_print(stdout, INDENT, "  model      %s\n", inspect_table_digest(t->model_digest, digest));
    terminal_print(stdout, INDENT,
                   "  geometry   %u layers, %u query heads on %u KV heads of dimension %u,\n"
                   "             %u of it rotated\n",
                   g->n_layers, g->n_heads, g->n_kv_heads, g->d, g->n_rot);
}

static void inspect_table_print_exact(const struct inspection *x)
{
    const struct table *t = x->table;
    char form[EXACT_FORM_TEXT_BYTES];

    inspect_table_print_names(x, "exact");
    terminal_print(stdout, INDENT, "  holds      %s,\n             as the engine's cache has them\n",
                   exact_form_print(&t->exact, form));
    terminal_print(stdout, INDENT, "  per token  %ju bytes\n",
                   (uintmax_t) (inspect_code_bits(t, SIDE_K) + inspect_code_bits(t, SIDE_V)) / 8);
    terminal_print(stdout, INDENT, "  per page   %ju bytes for %u tokens\n", (uintmax_t) x->info.page_bytes,
                   CHUNK_TOKENS);
}

static void inspect_table_print_head(const struct inspection *x)
{
    const struct table *t = x->table;
    const struct geometry *g = &t->geometry;
    uint64_t per_token = (inspect_code_bits(t, SIDE_K) + inspect_code_bits(t, SIDE_V)) / 8;
    uint64_t exact = (uint64_t) head_side_count(g) * g->d * 2;
    char ratio[48] = "";

    inspect_table_print_names(x, "allocation");
    terminal_print(stdout, INDENT,
                   "  bits       %.3f per number (K %.3f, V %.3f);%s\n"
                   "             first %u tokens exact\n",
                   t->bpd_code, inspect_side_bpd(t, SIDE_K), inspect_side_bpd(t, SIDE_V),
                   prediction_texts[t->v_from], t->n_sink);
    inspect_table_print_account(t);
    if (per_token > 0)
        (void) snprintf(ratio, sizeof(ratio), " (%.2f times as much)", (double) exact / (double) per_token);
    terminal_print(stdout, INDENT, "  per token  %ju bytes of codes; binary16 needs %ju%s\n",
                   (uintmax_t) per_token, (uintmax_t) exact, ratio);
    terminal_print(
        stdout, INDENT,
        "  per page   %ju bytes for %u tokens;\n             %ju for the first page of a sequence, with "
        "its exact tokens\n",
        (uintmax_t) x->info.page_bytes, CHUNK_TOKENS, (uintmax_t) x->info.first_page_bytes);
}

/* Number of coordinates of each width. */
static void inspect_table_print_widths(const struct table *t)
{
    _cleanup_(report_freep) struct report *r = report_new(">bits\t>K coordinates\t>V coordinates");
    uint64_t count[2][TABLE_BITS_MAX + 1] = {{0}};

    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++) {
        const struct codec *c = &t->codecs[i];

        for (unsigned k = 0; k < c->n_half; k++)
            count[i % 2][c->bits[k]] += 8;
    }

    for (unsigned b = TABLE_BITS_MAX; b > 0; b--)
        if (count[SIDE_K][b] + count[SIDE_V][b] > 0)
            report_row(r, "%u\t%ju\t%ju", b, (uintmax_t) count[SIDE_K][b], (uintmax_t) count[SIDE_V][b]);
    report_print(r, stdout);
}

/* Heads side by side in a map of 80 columns; further heads are below. */
enum { MAP_HEADS = 6 };

/* The heading or a row of a map: @begin, then one cell by @put for each head of [first, last). */
static char *inspect_table_map_line(const struct table *t, const char *begin, uint32_t layer, enum side side,
                                    uint32_t first, uint32_t last,
                                    void put(FILE *f, const struct table *t, uint32_t layer, uint32_t head,
                                             enum side side))
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(fclosep) FILE *f = NULL;
    size_t n;

    f = command_allocated(open_memstream(&text, &n));
    fputs(begin, f);
    for (uint32_t head = first; head < last; head++)
        put(f, t, layer, head, side);
    return command_allocated(fclose(take_ptr(f)) == 0 ? take_ptr(text) : NULL);
}

static void inspect_table_put_heading(FILE *f, const struct table *t, uint32_t layer, uint32_t head,
                                      enum side side)
{
    (void) t;
    (void) layer;
    (void) side;
    fprintf(f, "\t>head %u", head);
}

static void inspect_table_put_codec(FILE *f, const struct table *t, uint32_t layer, uint32_t head,
                                    enum side side)
{
    const struct codec *c = table_codec(t, layer, head, side);

    fprintf(f, "\t%u %5.2f", inspect_codec_stored(c), (double) c->code_bits / t->geometry.d);
}

static void inspect_table_print_map_part(const struct table *t, enum side side, uint32_t first, uint32_t last)
{
    _cleanup_(freep) char *columns =
        inspect_table_map_line(t, ">layer", 0, side, first, last, inspect_table_put_heading);
    _cleanup_(report_freep) struct report *r = report_new(columns);

    for (uint32_t layer = 0; layer < t->geometry.n_layers; layer++) {
        _cleanup_(freep) char *row = NULL;
        char begin[16];

        (void) snprintf(begin, sizeof(begin), "%u", layer);
        row = inspect_table_map_line(t, begin, layer, side, first, last, inspect_table_put_codec);
        report_row(r, "%s", row);
    }

    report_print(r, stdout);
}

static void inspect_table_print_map(const struct table *t, enum side side)
{
    uint32_t n_heads = t->geometry.n_kv_heads;

    printf("\n%s: stored coordinates and bits per number\n", side == SIDE_K ? "Keys" : "Values");
    for (uint32_t first = 0; first < n_heads; first += MAP_HEADS) {
        uint32_t last = n_heads - first < MAP_HEADS ? n_heads : first + MAP_HEADS;

        inspect_table_print_map_part(t, side, first, last);
    }
}

/* ---- provenance ---- */

/* A value in a few words: digests are cut, numbers have six digits, and objects in a list are counted. */
static void inspect_table_put_value(FILE *f, const json_t *value)
{
    size_t n = json_array_size(value);
    const char *text;

    switch (json_typeof(value)) {
    case JSON_STRING:
        text = json_string_value(value);
        fprintf(f, "%.*s", strlen(text) == DIGEST_HEX_BYTES - 1 ? 12 : (int) strlen(text), text);
        break;
    case JSON_ARRAY:
        if (n > 0 && !json_is_object(json_array_get(value, 0)))
            for (size_t i = 0; i < n; i++) {
                fputs(i > 0 ? " " : "", f);
                inspect_table_put_value(f, json_array_get(value, i));
            }
        else
            fprintf(f, "%zu", n);
        break;
    case JSON_OBJECT:
        fprintf(f, "%zu values", json_object_size(value));
        break;
    case JSON_INTEGER:
        fprintf(f, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        fprintf(f, "%g", json_real_value(value));
        break;
    case JSON_TRUE:
        fputs("yes", f);
        break;
    case JSON_FALSE:
        fputs("no", f);
        break;
    case JSON_NULL:
        fputs("none", f);
        break;
    }
}

/* The members of an object, or the value itself. */
static void inspect_table_print_entry(const char *key, json_t *value)
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(fclosep) FILE *f = NULL;
    const char *name, *between = "";
    json_t *member;
    size_t n;

    f = command_allocated(open_memstream(&text, &n));
    if (json_is_object(value))
        json_object_foreach(value, name, member)
        {
            fprintf(f, "%s%s ", between, name);
            inspect_table_put_value(f, member);
            between = ", ";
        }
    else
        inspect_table_put_value(f, value);
    if (fclose(take_ptr(f)) != 0)
        exit(command_fail("out of memory"));
    terminal_print(stdout, INDENT, "  %-10s %s\n", key, text);
}

/* table_parse() has refused control characters. */
static void inspect_table_print_provenance(const struct table *t)
{
    json_t *json = json_loads(t->provenance, 0, NULL), *value;
    const char *key;

    terminal_print(stdout, INDENT, "\nProvenance, whole with --json\n");
    if (!json_is_object(json))
        terminal_print(stdout, INDENT, "%s\n", t->provenance);
    json_object_foreach(json, key, value)
    {
        inspect_table_print_entry(key, value);
    }
    json_decref(json);
}

int inspect_table_text(const struct inspection *x)
{
    if (table_is_exact(x->table)) {
        inspect_table_print_exact(x);
        return COMMAND_OK;
    }

    inspect_table_print_head(x);
    putchar('\n');
    inspect_table_print_widths(x->table);
    inspect_table_print_map(x->table, SIDE_K);
    inspect_table_print_map(x->table, SIDE_V);
    inspect_table_print_provenance(x->table);
    return COMMAND_OK;
}
