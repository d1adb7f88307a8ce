/* Printing the result of one table; see eval_report.h. */
#include "tools/eval/eval_report.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/client_model.h"
#include "tools/command/human.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/eval/eval_subjects.h"

const char *eval_side_name(uint32_t sides)
{
    static const char *const names[] = {"kv", "k", "v", "kv"};

    return names[sides & 3];
}

/* The kinds of bytes of a cache; together they are all its bytes. */
enum { N_ITEMS = 5 };
struct eval_report_item {
    const char *name;
    uint64_t bytes;
};

static void eval_report_list_items(const kvc_usage *u, struct eval_report_item ret[static N_ITEMS])
{
    const struct eval_report_item items[N_ITEMS] = {
        {"codes", u->code_bytes}, {"padding", u->padding_bytes}, {"headers", u->header_bytes},
        {"sinks", u->sink_bytes}, {"tail", u->tail_bytes},
    };

    memcpy(ret, items, sizeof(items));
}

static double eval_report_per_number(const kvc_usage *u, uint64_t bytes)
{
    return u->numbers ? 8.0 * (double) bytes / (double) u->numbers : 0;
}

/* {"codes": {"bytes": ..., "bpd": ...}, ...}: the difference between bpd_code and bpd_true */
static json_t *eval_report_items_json(const kvc_usage *u)
{
    struct eval_report_item items[N_ITEMS];
    json_t *all = json_object();

    eval_report_list_items(u, items);
    for (size_t i = 0; i < N_ITEMS; i++) {
        json_t *one = json_pack("{s:I, s:f}", "bytes", (json_int_t) items[i].bytes, "bpd",
                                eval_report_per_number(u, items[i].bytes));

        if (json_object_set_new(all, items[i].name, one) < 0) { /* accepts NULL, drops @one on failure */
            json_decref(all);
            return NULL;
        }
    }

    return all;
}

/* Charged bits, and bytes that are stored once. */
static json_t *eval_report_account_json(const struct eval_result *res)
{
    const struct table_account *a = &res->account;

    return json_pack("{s:f, s:f, s:f, s:I}", "bpd_nominal", a->nominal, "k_bpd_nominal",
                     a->nominal_bpd[SIDE_K], "v_bpd_nominal", a->nominal_bpd[SIDE_V], "fixed_bytes",
                     (json_int_t) a->fixed_bytes);
}

/* The quarter's share of the distortion of all layers. */
static double eval_report_distortion_share(const struct eval_result *res, size_t part)
{
    double sum = 0;

    for (size_t i = 0; i < EVAL_PARTS; i++)
        sum += res->part_distortion[i];
    return sum > 0 ? res->part_distortion[part] / sum : 0;
}

/* [{"layers": 8, "ppl": ..., "kl": ..., "distortion_share": ...}, ...] */
static json_t *eval_report_parts_json(const struct eval_options *o, const struct eval_result *res)
{
    json_t *all = json_array();

    for (size_t i = 0; i < EVAL_PARTS; i++) {
        const struct evaluation *s = &res->parts[i];

        json_t *one = json_pack("{s:i, s:f, s:f}", "layers", (int) res->part_layers[i], "ppl",
                                evaluation_perplexity(s), "kl", evaluation_kl(s));

        if (one && o->quartile_statistics)
            (void) json_object_set_new(one, "distortion_share",
                                       json_real(eval_report_distortion_share(res, i)));
        if (json_array_append_new(all, one) < 0) {
            json_decref(all);
            return NULL;
        }
    }

    return all;
}

static json_t *eval_report_result_json(const struct eval_options *o, const struct eval_result *res)
{
    const struct evaluation *s = &res->sum;
    char digest[DIGEST_HEX_BYTES];
    json_t *json;

    json = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:i}", "model", res->model_name, "table",
                     digest_hex(res->table.table_digest, digest), "tokens", (json_int_t) s->n_tokens,
                     "windows", (json_int_t) s->n_windows, "window", (json_int_t) o->window, "last_window",
                     (json_int_t) s->last_window, "recent", (int) o->n_recent, "sinks", (int) res->n_sink);
    if (!json)
        return NULL;
    if (json_object_update_new(json, json_pack("{s:f, s:f, s:f, s:f, s:f}", "ppl_exact",
                                               evaluation_exact_perplexity(s), "ppl",
                                               evaluation_perplexity(s), "kl", evaluation_kl(s), "nll_exact",
                                               s->nll_exact, "nll", s->nll)) < 0 ||
        json_object_update_new(
            json, json_pack("{s:f, s:f, s:I, s:I, s:o}", "bpd_code", res->table.bpd_code, "bpd_true",
                            eval_report_per_number(&res->usage, usage_bytes(&res->usage)), "bytes",
                            (json_int_t) usage_bytes(&res->usage), "numbers", (json_int_t) res->usage.numbers,
                            "items", eval_report_items_json(&res->usage))) < 0 ||
        json_object_update_new(json,
                               json_pack("{s:s, s:i, s:i}", "side", eval_side_name(o->sides), "first_layer",
                                         (int) o->first_layer, "coded_layers", (int) o->n_layers)) < 0 ||
        json_object_update_new(json, eval_report_account_json(res)) < 0 ||
        (o->quartiles && json_object_set_new(json, "quartiles", eval_report_parts_json(o, res)) < 0)) {
        json_decref(json);
        return NULL;
    }

    return json;
}

static void eval_report_print_bytes(const kvc_usage *u)
{
    _cleanup_(report_freep) struct report *r = report_new("<held\t>bytes\t>bits per number");
    struct eval_report_item items[N_ITEMS];

    eval_report_list_items(u, items);
    for (size_t i = 0; i < N_ITEMS; i++)
        report_row(r, "%s\t%ju\t%.3f", items[i].name, (uintmax_t) items[i].bytes,
                   eval_report_per_number(u, items[i].bytes));
    report_row(r, "all\t%ju\t%.3f", (uintmax_t) usage_bytes(u), eval_report_per_number(u, usage_bytes(u)));
    report_row(r, "binary16\t%ju\t16.000", (uintmax_t) u->numbers * 2);
    report_print(r, stdout);
}

static void eval_report_print_account(const struct eval_result *res)
{
    const struct table_account *a = &res->account;
    char size[HUMAN_BYTES];

    terminal_print(
        stdout, 2,
        "charged %.3f bits per number without padding (K %.3f, V %.3f), 0 for data beside the codes; "
        "stored once: %s\n",
        a->nominal, a->nominal_bpd[SIDE_K], a->nominal_bpd[SIDE_V], human_bytes(a->fixed_bytes, size));
}

/*
 * Each quarter of the layers alone, their sum, and all together. With the quarters' shares of the distortion,
 * also the increase of perplexity per share: equal if the same distortion costs the same at every depth.
 */
static void eval_report_print_parts(const struct eval_options *o, const struct eval_result *res)
{
    static const char *const names[EVAL_PARTS] = {"first", "second", "third", "last"};
    _cleanup_(report_freep) struct report *r = report_new(
        o->quartile_statistics
            ? "<layers compressed\t>perplexity\t>increase\t>KL\t>share of distortion\t>increase per share"
            : "<layers compressed\t>perplexity\t>increase\t>KL");
    double exact = evaluation_exact_perplexity(&res->sum), increase = 0, kl = 0;

    for (size_t i = 0; i < EVAL_PARTS; i++) {
        const struct evaluation *s = &res->parts[i];
        double ppl = evaluation_perplexity(s);

        increase += ppl - exact;
        kl += evaluation_kl(s);
        if (o->quartile_statistics)
            report_row(r, "%s %u\t%.3f\t%+.3f\t%.5f\t%.1f %%\t%+.3f", names[i], res->part_layers[i], ppl,
                       ppl - exact, evaluation_kl(s), 100 * eval_report_distortion_share(res, i),
                       eval_report_distortion_share(res, i) > 0
                           ? (ppl - exact) / eval_report_distortion_share(res, i)
                           : 0.0);
        else
            report_row(r, "%s %u\t%.3f\t%+.3f\t%.5f", names[i], res->part_layers[i], ppl, ppl - exact,
                       evaluation_kl(s));
    }

    report_row(r, "sum of these\t\t%+.3f\t%.5f", increase, kl);
    report_row(r, "all\t%.3f\t%+.3f\t%.5f", evaluation_perplexity(&res->sum),
               evaluation_perplexity(&res->sum) - exact, evaluation_kl(&res->sum));
    report_print(r, stdout);
}

static int eval_report_print_text(const struct eval_options *o, const struct eval_result *res)
{
    _cleanup_(report_freep) struct report *r = report_new("<\t>exact\t>compressed");
    const struct evaluation *s = &res->sum;
    const struct subject_list exact = {.n_sink = res->n_sink};
    char digest[DIGEST_HEX_BYTES];

    printf("model   %s\n", res->model_name);
    printf("table   %s, %.3f bits per number\n", digest_short(res->table.table_digest, digest),
           res->table.bpd_code);
    eval_report_print_account(res);
    terminal_print(stdout, 8, "text    %s: %ju tokens in %ju window%s of %zu", o->text,
                   (uintmax_t) s->n_tokens, (uintmax_t) s->n_windows, s->n_windows == 1 ? "" : "s",
                   o->window);
    if (s->last_window < o->window)
        printf(", the last one of %zu", s->last_window);
    putchar('\n');
    eval_print_exact(o, &exact);
    putchar('\n');
    report_row(r, "perplexity\t%.3f\t%.3f", evaluation_exact_perplexity(s), evaluation_perplexity(s));
    report_row(r, "KL, nats per token\t0\t%.5f", evaluation_kl(s));
    report_print(r, stdout);

    putchar('\n');
    if (o->quartiles) {
        eval_report_print_parts(o, res);
        putchar('\n');
    }

    eval_report_print_bytes(&res->usage);
    return COMMAND_OK;
}

int eval_print(const struct eval_options *o, const struct eval_result *res)
{
    return o->common.json ? report_json(eval_report_result_json(o, res)) : eval_report_print_text(o, res);
}
