/* See eval_texts_report.h. */
#include "tools/eval/eval_texts_report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_budgets.h"
#include "tools/eval/eval_report.h"
#include "tools/eval/subject.h"

/* Recent window @recent of subject @i: its place in res->texts. */
static size_t eval_texts_report_at(const struct eval_texts_result *res, size_t recent, size_t i)
{
    return recent * res->lists[0].n + i;
}

static int32_t eval_texts_report_recent(const struct eval_options *o, size_t recent)
{
    return o->n_recents > 0 ? o->recents[recent] : o->n_recent;
}

/* With this recent window, no row of the same or fewer bits has a mean KL as low. */
static bool eval_texts_report_is_best(const struct eval_texts_result *res, size_t recent, size_t place)
{
    double kl = res->texts.rows[eval_texts_report_at(res, recent, res->order[place])].kl;

    for (size_t k = 0; k < place; k++)
        if (res->texts.rows[eval_texts_report_at(res, recent, res->order[k])].kl <= kl)
            return false;
    return true;
}

/* ---- JSON ---- */

/* {"text": ..., "tokens": ..., "kl": ..., "kl_low": ..., ...} of one subject and recent window */
static json_t *eval_texts_report_cell_json(const struct eval_options *o, const struct texts *texts,
                                           size_t text, size_t subject)
{
    const struct texts_cell *c = texts_cell(texts, text, subject);

    return json_pack("{s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "text",
                     utf8_json(o->texts[text], strlen(o->texts[text])), "tokens",
                     (json_int_t) c->sum.n_tokens, "windows", (json_int_t) c->sum.n_windows, "last_window",
                     (json_int_t) c->sum.last_window, "ppl_exact", evaluation_exact_perplexity(&c->sum),
                     "ppl", evaluation_perplexity(&c->sum), "kl", evaluation_kl(&c->sum), "kl_low",
                     report_json_real(c->kl.low), "kl_high", report_json_real(c->kl.high));
}

static json_t *eval_texts_report_recent_json(const struct eval_options *o,
                                             const struct eval_texts_result *res, size_t recent, size_t place)
{
    size_t i = res->order[place], at = eval_texts_report_at(res, recent, i);
    const struct subject *s = res->lists[recent].items[i];
    const struct texts_row *row = &res->texts.rows[at];
    json_t *texts = json_array();

    for (size_t text = 0; text < o->n_texts; text++)
        if (json_array_append_new(texts, eval_texts_report_cell_json(o, &res->texts, text, at)) < 0) {
            json_decref(texts);
            return NULL;
        }
    return json_pack("{s:i, s:f, s:f, s:f, s:o, s:o, s:f, s:o, s:o, s:f, s:o, s:b, s:o}", "recent",
                     (int) eval_texts_report_recent(o, recent), "bpd_charged", subject_charged_bpd(s),
                     "bpd_true", subject_held_bpd(s), "kl", row->kl, "kl_low",
                     report_json_real(row->interval.low), "kl_high", report_json_real(row->interval.high),
                     "kl_difference", row->more, "kl_difference_low",
                     report_json_real(row->more_interval.low), "kl_difference_high",
                     report_json_real(row->more_interval.high), "worst_kl",
                     evaluation_kl(&texts_cell(&res->texts, row->worst, at)->sum), "worst_text",
                     utf8_json(o->texts[row->worst], strlen(o->texts[row->worst])), "best",
                     (int) eval_texts_report_is_best(res, recent, place), "texts", texts);
}

static json_t *eval_texts_report_row_json(const struct eval_options *o, const struct eval_texts_result *res,
                                          size_t place)
{
    size_t i = res->order[place];
    const struct subject *s = res->lists[0].items[i];
    const struct subject_other *c = subject_other(s);
    json_t *all = json_array(), *json;
    char digest[DIGEST_HEX_BYTES];

    for (size_t recent = 0; recent < res->n_recents; recent++)
        if (json_array_append_new(all, eval_texts_report_recent_json(o, res, recent, place)) < 0) {
            json_decref(all);
            return NULL;
        }
    json =
        json_pack("{s:s, s:s, s:o}", "name", subject_name(s), "kind", c ? "format" : "table", "recents", all);
    if (json && c)
        (void) json_object_update_new(json, c->describe(c->state));
    if (json && !c)
        (void) json_object_set_new(json, "table",
                                   json_string(digest_hex(subject_table(s)->table_digest, digest)));
    return json;
}

static json_t *eval_texts_report_json(const struct engine *en, const struct eval_options *o,
                                      const struct eval_texts_result *res)
{
    json_t *all = json_array(), *json;

    for (size_t place = 0; place < res->lists[0].n; place++)
        if (json_array_append_new(all, eval_texts_report_row_json(o, res, place)) < 0) {
            json_decref(all);
            return NULL;
        }
    json = json_pack("{s:s, s:I, s:i, s:s, s:i, s:i, s:o}", "model", engine_info(en)->name, "window",
                     (json_int_t) o->window, "sinks", (int) res->lists[0].n_sink, "side",
                     eval_side_name(o->sides), "first_layer", (int) o->first_layer, "coded_layers",
                     (int) o->n_layers, "rows", all);
    if (json && res->budgets &&
        json_object_set_new(json, "budgets",
                            eval_budgets_json(o, res->budgets, &res->lists[0], &res->texts)) < 0) {
        json_decref(json);
        return NULL;
    }

    return json;
}

/* ---- text ---- */

#define NAME_BYTES 64

/* "texts/novel.txt": "novel.txt", without control characters. */
static const char *eval_texts_report_name(const char *path, char ret[static NAME_BYTES])
{
    const char *base = strrchr(path, '/');

    (void) snprintf(ret, NAME_BYTES, "%s", base && base[1] ? base + 1 : path);
    for (char *p = ret; *p; p++)
        if ((unsigned char) *p < ' ' || *p == 0x7f)
            *p = '?';
    return ret;
}

/* ", 128 recent" where there are several recent windows. */
#define WINDOW_BYTES 32
static const char *eval_texts_report_window(const struct eval_options *o, const struct eval_texts_result *res,
                                            size_t recent, char ret[static WINDOW_BYTES])
{
    *ret = '\0';
    if (res->n_recents > 1)
        (void) snprintf(ret, WINDOW_BYTES, ", %d recent", eval_texts_report_recent(o, recent));
    return ret;
}

static void eval_texts_report_print_texts(const struct eval_options *o, const struct eval_texts_result *res)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<text\t>tokens\t>windows\t>last window\t>exact perplexity");
    char name[NAME_BYTES];

    for (size_t text = 0; text < o->n_texts; text++) {
        const struct evaluation *s = &texts_cell(&res->texts, text, 0)->sum;

        report_row(r, "%s\t%ju\t%ju\t%zu\t%.3f", eval_texts_report_name(o->texts[text], name),
                   (uintmax_t) s->n_tokens, (uintmax_t) s->n_windows, s->last_window,
                   evaluation_exact_perplexity(s));
    }

    report_print(r, stdout);
}

/* The texts of one subject, their mean, and the worst of them. */
static void eval_texts_report_print_subject(const struct eval_options *o, const struct eval_texts_result *res,
                                            size_t i)
{
    _cleanup_(report_freep) struct report *r = NULL;
    char columns[256], interval[INTERVAL_BYTES], name[NAME_BYTES], window[WINDOW_BYTES];

    (void) snprintf(columns, sizeof(columns), "<%s", subject_name(res->lists[0].items[i]));
    for (size_t recent = 0; recent < res->n_recents; recent++) {
        size_t n = strlen(columns);

        (void) snprintf(columns + n, sizeof(columns) - n, "\t>KL%s\t>95 %%",
                        eval_texts_report_window(o, res, recent, window));
    }

    r = report_new(columns);
    for (size_t text = 0; text < o->n_texts; text++) {
        char row[512]; /* a name of 63 bytes, four windows of 60 */
        size_t n = (size_t) snprintf(row, sizeof(row), "%s", eval_texts_report_name(o->texts[text], name));

        for (size_t recent = 0; recent < res->n_recents; recent++) {
            const struct texts_cell *c = texts_cell(&res->texts, text, eval_texts_report_at(res, recent, i));

            n += (size_t) snprintf(row + n, sizeof(row) - n, "\t%.5f\t%s", evaluation_kl(&c->sum),
                                   interval_text(c->kl, 5, interval));
        }
        report_row(r, "%s", row);
    }

    report_print(r, stdout);
}

/* One row per subject. */
static void eval_texts_report_print_means(const struct eval_options *o, const struct eval_texts_result *res,
                                          size_t recent)
{
    _cleanup_(report_freep) struct report *r = NULL;
    char columns[128], interval[INTERVAL_BYTES], name[NAME_BYTES], window[WINDOW_BYTES];

    (void) snprintf(columns, sizeof(columns), "<mean%s\t<\t>charged\t>true\t>KL\t>95 %%\t>worst\t<of",
                    eval_texts_report_window(o, res, recent, window));
    r = report_new(columns);
    for (size_t place = 0; place < res->lists[0].n; place++) {
        size_t i = res->order[place], at = eval_texts_report_at(res, recent, i);
        const struct subject *s = res->lists[recent].items[i];
        const struct texts_row *t = &res->texts.rows[at];

        report_row(r, "%s\t%s\t%.3f\t%.3f\t%.5f\t%s\t%.5f\t%s", subject_name(s),
                   eval_texts_report_is_best(res, recent, place) ? "*" : "", subject_charged_bpd(s),
                   subject_held_bpd(s), t->kl, interval_text(t->interval, 5, interval),
                   evaluation_kl(&texts_cell(&res->texts, t->worst, at)->sum),
                   eval_texts_report_name(o->texts[t->worst], name));
    }

    report_print(r, stdout);
}

/* One row per subject but the first, with which it is compared. */
static void eval_texts_report_print_differences(const struct eval_options *o,
                                                const struct eval_texts_result *res, size_t recent)
{
    _cleanup_(report_freep) struct report *r = NULL;
    char columns[192], interval[INTERVAL_BYTES], window[WINDOW_BYTES];

    (void) snprintf(columns, sizeof(columns), "<minus %s%s\t>KL\t>95 %%",
                    subject_name(res->lists[0].items[0]), eval_texts_report_window(o, res, recent, window));
    r = report_new(columns);
    for (size_t place = 0; place < res->lists[0].n; place++) {
        size_t i = res->order[place], at = eval_texts_report_at(res, recent, i);
        const struct texts_row *t = &res->texts.rows[at];

        if (i > 0)
            report_row(r, "%s\t%+.5f\t%s", subject_name(res->lists[recent].items[i]), t->more,
                       interval_text(t->more_interval, 5, interval));
    }

    report_print(r, stdout);
}

static void eval_texts_report_print_tables(const struct eval_options *o, const struct eval_texts_result *res)
{
    eval_texts_report_print_texts(o, res);
    for (size_t place = 0; place < res->lists[0].n; place++) {
        putchar('\n');
        eval_texts_report_print_subject(o, res, res->order[place]);
    }
    for (size_t recent = 0; recent < res->n_recents; recent++) {
        putchar('\n');
        eval_texts_report_print_means(o, res, recent);
    }
    for (size_t recent = 0; res->lists[0].n > 1 && recent < res->n_recents; recent++) {
        putchar('\n');
        eval_texts_report_print_differences(o, res, recent);
    }
    putchar('\n');
    if (res->budgets) {
        eval_budgets_print(o, res->budgets, &res->lists[0], &res->texts);
        putchar('\n');
    }
}

int eval_texts_print(const struct engine *en, const struct eval_options *o,
                     const struct eval_texts_result *res)
{
    if (o->common.json)
        return report_json(eval_texts_report_json(en, o, res));

    printf("model   %s\n", engine_info(en)->name);
    printf("texts   %zu, in windows of %zu tokens\n", o->n_texts, o->window);
    eval_print_exact(o, &res->lists[0]);
    putchar('\n');
    eval_texts_report_print_tables(o, res);
    terminal_print(stdout, 9,
                   "charged: bits per number of coded tokens, with scales, norms and outliers\n"
                   "true:    bits per number of all windows, with exact tokens at 16\n"
                   "KL:      from the exact model, nats per token; each text counts once in means\n"
                   "95 %%:    interval of the mean over windows (bootstrap); - for a single window;\n"
                   "         too narrow for few windows: 80 %% with 4 of them, 90 %% with 16\n"
                   "*:       no row of the same or fewer bits has a mean KL as low\n"
                   "minus:   difference of mean KL to the first row named, over the same windows\n");
    return COMMAND_OK;
}
