/* See table_list.h. */
#include "tools/operate/table_list.h"

#include <stdio.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"

/* Share of the quantised coordinates that lie beyond the range of their quantiser. */
static double table_list_saturation(uint64_t saturated, uint64_t coded)
{
    return coded > 0 ? (double) saturated / (double) coded : 0;
}

/* ---- JSON ---- */

static json_t *table_list_pair_json(double k, double v)
{
    return json_pack("{s:f, s:f}", "k", k, "v", v);
}

/* The fit that clients reported, and the share of traffic that tries the table. */
static json_t *table_list_live_json(const Kvcobra__TableInfo *t)
{
    const Kvcobra__Fit *f = t->fit;
    bool has_error = t->expected_error_k > 0 || t->expected_error_v > 0;

    return json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:I, s:I, s:I}", "reports", (json_int_t) f->reports,
        "tokens", (json_int_t) f->tokens, "error", table_list_pair_json(f->error_k, f->error_v),
        "expected_error",
        has_error ? table_list_pair_json(t->expected_error_k, t->expected_error_v) : json_null(),
        "saturation",
        table_list_pair_json(table_list_saturation(f->saturated_k, f->coded_k),
                             table_list_saturation(f->saturated_v, f->coded_v)),
        "expected_saturation",
        t->expected_saturated_k >= 0 ? table_list_pair_json(t->expected_saturated_k, t->expected_saturated_v)
                                     : json_null(),
        "shadow_tokens", (json_int_t) f->shadow_tokens, "active_error",
        table_list_pair_json(f->active_error_k, f->active_error_v), "shadow_error",
        table_list_pair_json(f->shadow_error_k, f->shadow_error_v), "shadow_ppm", (json_int_t) t->shadow_ppm,
        "canary_share", (json_int_t) t->canary_share, "canary_tenants", (json_int_t) t->canary_tenants);
}

/* The form of an exact table in words, or null. */
static json_t *table_list_exact_json(uint32_t packed)
{
    char text[EXACT_FORM_TEXT_BYTES];
    struct exact_form form;

    return exact_form_unpack(packed, &form) ? json_string(exact_form_print(&form, text)) : json_null();
}

static json_t *table_list_json(const Kvcobra__TableInfo *t)
{
    char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES];

    return json_pack("{s:s, s:s, s:s, s:f, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "digest",
                     digest_hex(t->digest.data, digest), "model", digest_hex(t->model_digest.data, model),
                     "state", operator_table_state(t->state), "bpd_code", t->bpd_code, "exact",
                     table_list_exact_json(t->exact), "file_bytes", (json_int_t) t->file_bytes, "references",
                     (json_int_t) t->references, "pages", (json_int_t) t->pages, "revision",
                     (json_int_t) t->revision, "reason", utf8_json(t->reason, strlen(t->reason)), "live",
                     table_list_live_json(t));
}

int table_list_print_json(const Kvcobra__ListTablesReply *list)
{
    json_t *all = json_array();

    for (size_t i = 0; i < list->n_tables; i++) {
        if (json_array_append_new(all, table_list_json(list->tables[i])) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }

    return report_json(all);
}

/* ---- text ---- */

/* One line each for an exact form, the live error, a shadow and a canary, if the table has them. */
static void table_list_print_live(const Kvcobra__TableInfo *t)
{
    char hex[DIGEST_HEX_BYTES], text[EXACT_FORM_TEXT_BYTES];
    struct exact_form form;
    const Kvcobra__Fit *f = t->fit;
    const char *name = digest_short(t->digest.data, hex);

    if (f->tokens > 0) {
        char error[64] = "", saturated[64] = "";

        if (t->expected_error_k > 0 || t->expected_error_v > 0)
            (void) snprintf(error, sizeof(error), " (expected %.4f, %.4f)", t->expected_error_k,
                            t->expected_error_v);
        if (t->expected_saturated_k >= 0)
            (void) snprintf(saturated, sizeof(saturated), " (expected %.2g, %.2g)", t->expected_saturated_k,
                            t->expected_saturated_v);
        terminal_print(stdout, 2,
                       "%s: live error of keys %.4f, values %.4f%s on %ju tokens; saturated %.2g, %.2g%s\n",
                       name, f->error_k, f->error_v, error, (uintmax_t) f->tokens,
                       table_list_saturation(f->saturated_k, f->coded_k),
                       table_list_saturation(f->saturated_v, f->coded_v), saturated);
    }

    if (exact_form_unpack(t->exact, &form))
        terminal_print(stdout, 2,
                       "%s: exact: the bytes of an engine's cache (%s); a table of 3 bits saves %.0f %%\n",
                       name, exact_form_print(&form, text), 100 * (1 - 3 / t->bpd_code));

    if (t->state == KVCOBRA__TABLE_STATE__TABLE_SHADOW)
        terminal_print(stdout, 2, "%s: shadow for %.4g %% of new chunks\n", name, t->shadow_ppm / 1e4);

    if (f->shadow_tokens > 0)
        terminal_print(
            stdout, 2,
            "%s: error of keys %.4f, values %.4f; the active table on the same %ju tokens: %.4f, %.4f\n",
            name, f->shadow_error_k, f->shadow_error_v, (uintmax_t) f->shadow_tokens, f->active_error_k,
            f->active_error_v);

    if (t->canary_share > 0 || t->canary_tenants > 0)
        terminal_print(stdout, 2, "%s: canary for %.3g %% of new sequences and all of %u tenants\n", name,
                       t->canary_share / 2.56, t->canary_tenants);
}

int table_list_print_text(const Kvcobra__ListTablesReply *list)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<table\t<model\t<state\t>bpd\t>file\t>references\t>pages\t<reason");

    if (list->n_tables == 0) {
        puts("the daemon has no tables");
        return COMMAND_OK;
    }

    for (size_t i = 0; i < list->n_tables; i++) {
        const Kvcobra__TableInfo *t = list->tables[i];
        char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

        report_row(r, "%s\t%s\t%s\t%.3f\t%s\t%ju\t%ju\t%s", digest_short(t->digest.data, digest),
                   digest_short(t->model_digest.data, model), operator_table_state(t->state), t->bpd_code,
                   human_bytes(t->file_bytes, size), (uintmax_t) t->references, (uintmax_t) t->pages,
                   t->reason);
    }

    report_print(r, stdout);

    for (size_t i = 0; i < list->n_tables; i++)
        table_list_print_live(list->tables[i]);
    return COMMAND_OK;
}
