/*
 * kvcobra compare A B: differences between two allocation tables of one model. Two calibrations whose tables
 * agree here need no comparison by `kvcobra eval`.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/table/table.h"
#include "alloc/table/table_account.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/report.h"

struct compare_options {
    struct common_options common;
    const char *path[2];
    unsigned n_paths;
};

static const char doc[] =
    "Compare two allocation tables of one model: budgets, widths and ranks per head.\vThe correlation is "
    "that of the heads' budgets (stored coordinates times bits). Two heads have the same width if the mean "
    "widths of their coordinates, rounded to whole bits, are equal. |delta r| is the mean difference in "
    "stored coordinates. Half-tiles (8 coordinates each) are compared in stored order, widest first. A "
    "second table has the bits per number by quartile of the layers.\n\n"
    "Example, with tables calibrated on different texts:\n\n"
    "  kvcobra compare news-2.table books-2.table";

static error_t cmd_compare_parse(int key, char *arg, struct argp_state *state)
{
    struct compare_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case ARGP_KEY_ARG:
        if (o->n_paths == 2)
            argp_error(state, "compare takes two tables; '%s' is one too many", arg);
        o->path[o->n_paths++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->n_paths < 2)
            argp_error(state, "two table files are needed");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {NULL, cmd_compare_parse, "TABLE TABLE", doc, common_children, NULL, NULL};

static int cmd_compare_check_same(const struct compare_options *o, const struct table *a,
                                  const struct table *b, struct errmsg *e)
{
    const struct geometry *x = &a->geometry, *y = &b->geometry;

    if (x->n_layers != y->n_layers || x->n_kv_heads != y->n_kv_heads || x->d != y->d)
        return fail(e, -EINVAL,
                    "%s is for %u layers of %u KV heads of dimension %u, %s for %u, %u and %u: their heads "
                    "cannot be compared",
                    o->path[0], x->n_layers, x->n_kv_heads, x->d, o->path[1], y->n_layers, y->n_kv_heads,
                    y->d);

    return 0;
}

static const char *cmd_compare_correlation_text(double c, char ret[static 16])
{
    (void) snprintf(ret, 16, isnan(c) ? "-" : "%.4f", c);
    return ret;
}

static void cmd_compare_print_parts(const struct table *t, const struct table_comparison c[2])
{
    static const char *const names[COMPARE_PARTS] = {"first", "second", "third", "last"};
    _cleanup_(report_freep) struct report *r = report_new("<quartile of layers\t>K, A\t>K, B\t>V, A\t>V, B");

    for (uint32_t part = 0; part < COMPARE_PARTS; part++)
        if (part < t->geometry.n_layers || t->geometry.n_layers >= COMPARE_PARTS)
            report_row(r, "%s\t%.3f\t%.3f\t%.3f\t%.3f", names[part], c[SIDE_K].bpd[0][part],
                       c[SIDE_K].bpd[1][part], c[SIDE_V].bpd[0][part], c[SIDE_V].bpd[1][part]);
    report_print(r, stdout);
}

static int cmd_compare_print_text(const struct compare_options *o, const struct table *const t[2],
                                  const struct table_comparison c[2])
{
    _cleanup_(report_freep) struct report *r =
        report_new("<side\t>heads\t>budget correlation\t>same width\t>same half-tiles\t>mean |delta r|");
    char digest[DIGEST_HEX_BYTES], text[16];

    for (int i = 0; i < 2; i++)
        printf("%c  %s: table %s, %.3f bits per number\n", 'A' + i, o->path[i],
               digest_short(t[i]->digest, digest), t[i]->bpd_code);
    putchar('\n');
    for (int side = SIDE_K; side <= SIDE_V; side++)
        report_row(r, "%s\t%u\t%s\t%.1f %%\t%.1f %%\t%.2f", side == SIDE_K ? "keys" : "values",
                   c[side].n_heads, cmd_compare_correlation_text(c[side].budget_correlation, text),
                   100 * c[side].same_width, 100 * c[side].same_half_tiles, c[side].rank_difference);
    report_print(r, stdout);

    printf("\nBits per number without padding\n");
    cmd_compare_print_parts(t[0], c);
    if (memcmp(t[0]->model_digest, t[1]->model_digest, DIGEST_BYTES) != 0)
        command_note(&o->common, "the tables are of two different models");
    return COMMAND_OK;
}

static json_t *cmd_compare_parts_json(const double *bpd)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < COMPARE_PARTS; i++)
        (void) json_array_append_new(all, json_real(bpd[i]));
    return all;
}

static json_t *cmd_compare_side_json(const struct table_comparison *c)
{
    json_t *correlation = isnan(c->budget_correlation) ? json_null() : json_real(c->budget_correlation);

    return json_pack("{s:i, s:o, s:f, s:f, s:f, s:o, s:o}", "heads", (int) c->n_heads, "budget_correlation",
                     correlation, "same_width", c->same_width, "same_half_tiles", c->same_half_tiles,
                     "rank_difference", c->rank_difference, "quartile_bpd_a",
                     cmd_compare_parts_json(c->bpd[0]), "quartile_bpd_b", cmd_compare_parts_json(c->bpd[1]));
}

static int cmd_compare_print_json(const struct table *const t[2], const struct table_comparison c[2])
{
    char a[DIGEST_HEX_BYTES], b[DIGEST_HEX_BYTES];

    return report_json(json_pack("{s:s, s:s, s:b, s:o, s:o}", "a", digest_hex(t[0]->digest, a), "b",
                                 digest_hex(t[1]->digest, b), "same_model",
                                 memcmp(t[0]->model_digest, t[1]->model_digest, DIGEST_BYTES) == 0, "K",
                                 cmd_compare_side_json(&c[SIDE_K]), "V", cmd_compare_side_json(&c[SIDE_V])));
}

static int cmd_compare_run(int argc, char **argv)
{
    _cleanup_(table_unrefp) struct table *a = NULL;
    _cleanup_(table_unrefp) struct table *b = NULL;
    struct compare_options o = {0};
    struct table_comparison c[2];
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (table_load(o.path[0], &a, &e) < 0 || table_load(o.path[1], &b, &e) < 0 ||
        cmd_compare_check_same(&o, a, b, &e) < 0)
        return command_fail("%s", e.text);

    table_compare(a, b, c);
    return o.common.json ? cmd_compare_print_json((const struct table *[]){a, b}, c)
                         : cmd_compare_print_text(&o, (const struct table *[]){a, b}, c);
}

COMMAND(cmd_compare) = {
    .name = "compare",
    .summary = "compare two tables of one model",
    .run = cmd_compare_run,
    .rank = 60,
    .related = "inspect",
};
