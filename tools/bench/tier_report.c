/* See tier_report.h. */
#include "tools/bench/tier_report.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "alloc/math/sort.h"
#include "base/cleanup.h"
#include "tools/bench/machine.h"
#include "tools/bench/timing.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"

static const char *const source_names[] = {"memory", "disk", "cluster", "computed"};

/* ---- rates ---- */

/* Of the ratios of the turns: what else the machine did meanwhile cancels in part. NaN: there are none. */
static double tier_report_ratio(const struct tier_rate *r)
{
    double ratios[TIER_REPEAT_MAX];

    if (r->theirs[0] <= 0)
        return NAN;
    for (size_t i = 0; i < r->n; i++)
        ratios[i] = r->ours[i] / r->theirs[i];
    sort_doubles(ratios, r->n);
    return ratios[r->n / 2];
}

/* Sorts a copy. */
static struct timing tier_report_timing(const double *samples, size_t n)
{
    double sorted[TIER_REPEAT_MAX];

    memcpy(sorted, samples, n * sizeof(*samples));
    return timing_of(sorted, n);
}

static json_t *tier_report_rate_json(const struct tier_rate *r)
{
    bool has_peer = r->theirs[0] > 0;
    json_t *theirs = has_peer ? timing_json(tier_report_timing(r->theirs, r->n), 1) : json_null();

    return json_pack("{s:s, s:o, s:s, s:o, s:o, s:s, s:s}", "what", r->name, "bytes_per_second",
                     timing_json(tier_report_timing(r->ours, r->n), 1), "peer", r->peer,
                     "peer_bytes_per_second", theirs, "ratio", report_json_real(tier_report_ratio(r)),
                     "command", r->command, "skipped", r->skipped.text);
}

static void tier_report_rates(const struct tier_results *x)
{
    _cleanup_(report_freep) struct report *t = report_new("<pages\t>MB/s\t<beside\t>MB/s\t>ratio");

    for (size_t i = 0; i < TIER_RATES; i++) {
        const struct tier_rate *r = &x->rates[i];

        if (!r->name)
            continue;
        if (r->theirs[0] > 0)
            report_row(t, "%s\t%.0f\t%s\t%.0f\t%.2f", r->name, tier_report_timing(r->ours, r->n).median / 1e6,
                       r->peer, tier_report_timing(r->theirs, r->n).median / 1e6, tier_report_ratio(r));
        else
            report_row(t, "%s\t%.0f\t%s", r->name, tier_report_timing(r->ours, r->n).median / 1e6,
                       r->skipped.text);
    }
    report_print(t, stdout);
    for (size_t i = 0; i < TIER_RATES; i++)
        if (x->rates[i].name && x->rates[i].command[0])
            printf("  %s\n", x->rates[i].command);
}

/* ---- the text ---- */

static void tier_report_times(const char *what, const double *seconds)
{
    printf("%s:", what);
    for (size_t i = 0; i < TIER_SOURCES; i++)
        if (seconds[i] > 0)
            printf(" %s %.1f ms;", source_names[i], seconds[i] * 1e3);
    printf("\n");
}

static void tier_report_answers(const char *what, const struct tier_answers *a)
{
    printf("%s: %zu answers, median %.3f ms, p99.9 %.3f ms, longest %.3f ms\n", what, a->n, a->median_s * 1e3,
           a->p999_s * 1e3, a->max_s * 1e3);
}

int tier_report_text(struct tier_results *x)
{
    char cpu[MACHINE_CPU_NAME_BYTES], bytes[HUMAN_BYTES], line[128];

    machine_cpu_name(cpu);
    printf("%s; %s; pages of %s, %zu prompts of %zu pages, at most %u requests at a time\n", cpu, x->folder,
           human_bytes(x->page_bytes, bytes), x->n_prompts, x->n_pages, (unsigned) x->depth);
    tier_report_rates(x);
    if (x->no_cluster.text[0])
        terminal_print(stdout, 0, "no cluster was measured: %s\n", x->no_cluster.text);
    printf("%u threads decrypt %.0f MB/s\n", x->n_threads, x->opening_bytes_per_s / 1e6);
    (void) snprintf(line, sizeof(line), "%zu tokens until they are decoded", x->ready_tokens);
    tier_report_times(line, x->ready_s);
    tier_report_answers("kvcobrad answers another client, without other work", &x->quiet);
    tier_report_answers("kvcobrad answers another client, while pages are fetched", &x->busy);
    if (x->restart_pages > 0)
        printf("restart with %zu pages on the disk: serves after %.3f s, has the pages after %.3f s\n",
               x->restart_pages, x->restart_serving_s, x->restart_ready_s);
    if (x->model) {
        (void) snprintf(line, sizeof(line), "first token of %s, %zu tokens", x->model, x->prompt_tokens);
        tier_report_times(line, x->first_token_s);
    }
    return COMMAND_OK;
}

/* ---- JSON ---- */

static json_t *tier_report_times_json(const double *seconds)
{
    json_t *o = json_object();

    for (size_t i = 0; i < TIER_SOURCES; i++)
        (void) json_object_set_new(o, source_names[i], seconds[i] > 0 ? json_real(seconds[i]) : json_null());
    return o;
}

static json_t *tier_report_answers_json(const struct tier_answers *a)
{
    return json_pack("{s:I, s:f, s:f, s:f}", "count", (json_int_t) a->n, "median_s", a->median_s, "p999_s",
                     a->p999_s, "max_s", a->max_s);
}

static json_t *tier_report_restart_json(const struct tier_results *x)
{
    if (x->restart_pages == 0)
        return json_null();
    return json_pack("{s:I, s:f, s:f}", "pages", (json_int_t) x->restart_pages, "serving_s",
                     x->restart_serving_s, "ready_s", x->restart_ready_s);
}

static json_t *tier_report_first_json(const struct tier_results *x)
{
    json_t *matched;

    if (!x->model)
        return json_null();
    matched = json_array();
    for (size_t i = 0; i < TIER_SOURCES; i++)
        (void) json_array_append_new(matched, json_integer((json_int_t) x->matched_tokens[i]));
    return json_pack("{s:s, s:I, s:o, s:o}", "model", x->model, "prompt_tokens",
                     (json_int_t) x->prompt_tokens, "matched_tokens", matched, "seconds",
                     tier_report_times_json(x->first_token_s));
}

int tier_report_json(struct tier_results *x)
{
    char cpu[MACHINE_CPU_NAME_BYTES];
    json_t *rates = json_array();

    machine_cpu_name(cpu);
    for (size_t i = 0; i < TIER_RATES; i++)
        if (x->rates[i].name)
            (void) json_array_append_new(rates, tier_report_rate_json(&x->rates[i]));
    return report_json(json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:s, s:{s:I, s:f}, s:I, s:o, s:o, s:o, s:o, s:o}", "cpu",
        cpu, "compiler", COMPILER, "folder", x->folder, "page_bytes", (json_int_t) x->page_bytes, "prompts",
        (json_int_t) x->n_prompts, "pages", (json_int_t) x->n_pages, "depth", (json_int_t) x->depth, "rates",
        rates, "no_cluster", x->no_cluster.text, "decrypting", "threads", (json_int_t) x->n_threads,
        "bytes_per_second", x->opening_bytes_per_s, "ready_tokens", (json_int_t) x->ready_tokens, "ready_s",
        tier_report_times_json(x->ready_s), "answers_quiet", tier_report_answers_json(&x->quiet),
        "answers_while_fetching", tier_report_answers_json(&x->busy), "restart", tier_report_restart_json(x),
        "first_token", tier_report_first_json(x)));
}
