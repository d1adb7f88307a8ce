/* The report of `kvcobra-lab bench service` as JSON and text, with the limits; see bench_service.h. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "lab/bench/bench_service.h"
#include "lab/bench/bench_service_device.h"
#include "tools/bench/machine.h"
#include "tools/command/command.h"
#include "tools/command/report.h"

/* ---- limits ---- */

enum sense { BELOW, EXACTLY };

struct verdict { /* a limit and the measured value */
    const char *what;
    enum sense sense;
    double limit, measured;
};

enum { VERDICTS_MAX = 16 };

static bool service_report_is_met(const struct verdict *v)
{
    return v->sense == BELOW ? v->measured < v->limit : v->measured == v->limit;
}

static double service_report_bytes_per_page(const struct memory_state *s)
{
    return (double) (s->slot_records + s->index + s->holds + s->heap) / (double) s->n_pages;
}

static size_t service_report_check_load(const struct load_metrics *f, struct verdict *ret)
{
    ret[0] = (struct verdict){"lease, p50 / exchange", BELOW, 3, f->lease.median / f->ping.median};
    ret[1] = (struct verdict){"lease, p99 / exchange", BELOW, 10, f->lease.p99 / f->ping.p99};
    ret[2] = (struct verdict){"commit, p50 / (3 exchanges + 1.5 copies)", BELOW, 1,
                              f->commit.median / (3 * f->ping.median + 1.5 * f->copy.median)};
    ret[3] = (struct verdict){"lookup of a chunk, p50, us", BELOW, 1, f->lookup.median * 1e6};
    return 4;
}

static size_t service_report_check_memory(const struct memory_metrics *f, struct verdict *ret)
{
    ret[0] = (struct verdict){"memory beside a page, bytes", BELOW, 128,
                              service_report_bytes_per_page(&f->filled)};
    ret[1] = (struct verdict){"the same after churn, bytes", BELOW, 128,
                              service_report_bytes_per_page(&f->churned)};
    return 2;
}

static size_t service_report_check_swap(const struct swap_metrics *f, struct verdict *ret)
{
    ret[0] = (struct verdict){"calls that failed during swaps", EXACTLY, 0, (double) f->n_failed};
    ret[1] = (struct verdict){"wrong reads", EXACTLY, 0, (double) f->n_wrong};
    ret[2] = (struct verdict){"p99.9 of a call above the one without swaps, ms", BELOW, 1,
                              (f->swapping.all.p999 - f->quiet.all.p999) * 1e3};
    return 3;
}

static size_t service_report_check_restart(const struct restart_metrics *f, struct verdict *ret)
{
    ret[0] = (struct verdict){"serving again, slowest, ms", BELOW, 200, f->serving.p99 * 1e3};
    ret[1] = (struct verdict){"lost pages", EXACTLY, 0, (double) (f->n_pages - f->n_found)};
    ret[2] =
        (struct verdict){"sampled pages that differ", EXACTLY, 0, (double) (f->n_sampled - f->n_identical)};
    ret[3] = (struct verdict){"holds that were lost", EXACTLY, 0, (double) f->n_pages - (double) f->n_held};
    ret[4] = (struct verdict){"generations not above earlier ones", EXACTLY, 0, (double) f->n_lower};
    return 5;
}

static size_t service_report_check(const struct service_metrics *f, struct verdict ret[VERDICTS_MAX])
{
    size_t n = 0;

    if (f->load)
        n += service_report_check_load(f->load, ret + n);
    if (f->memory)
        n += service_report_check_memory(f->memory, ret + n);
    if (f->swap)
        n += service_report_check_swap(f->swap, ret + n);
    if (f->restart)
        n += service_report_check_restart(f->restart, ret + n);
    return n;
}

/* ---- JSON ---- */

static json_t *service_report_load_json(const struct load_metrics *f)
{
    return json_pack("{s:I, s:I, s:{s:o, s:o, s:o, s:o, s:o}, s:i}", "samples", (json_int_t) f->n_samples,
                     "page_bytes", (json_int_t) f->page_bytes, "us", "exchange", timing_json(f->ping, 1e6),
                     "lease", timing_json(f->lease, 1e6), "commit", timing_json(f->commit, 1e6), "copy",
                     timing_json(f->copy, 1e6), "lookup_per_chunk", timing_json(f->lookup, 1e6),
                     "lookup_system_calls", 0);
}

static json_t *service_report_state_json(const struct memory_state *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "pages", (json_int_t) s->n_pages,
                     "sessions", (json_int_t) s->n_sessions, "leases", (json_int_t) s->n_leases, "evictions",
                     (json_int_t) s->n_evicted, "slot_record_bytes", (json_int_t) s->slot_records,
                     "index_bytes", (json_int_t) s->index, "hold_bytes", (json_int_t) s->holds, "heap_bytes",
                     (json_int_t) s->heap, "resident_bytes", (json_int_t) s->resident, "bytes_per_page",
                     service_report_bytes_per_page(s));
}

static json_t *service_report_memory_json(const struct memory_metrics *f)
{
    return json_pack("{s:I, s:f, s:o, s:I, s:o}", "page_bytes", (json_int_t) f->page_bytes, "fill_seconds",
                     f->seconds, "filled", service_report_state_json(&f->filled), "churned_pages",
                     (json_int_t) f->n_churned, "churned", service_report_state_json(&f->churned));
}

static const char *const call_names[SWAP_CALLS] = {"begin", "match", "append", "commit", "read"};

static json_t *service_report_latency_json(const struct swap_latency *l)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f}", "calls", (json_int_t) l->n, "median", l->median * 1e6,
                     "p99", l->p99 * 1e6, "p999", l->p999 * 1e6, "max", l->max * 1e6);
}

static json_t *service_report_latencies_json(const struct swap_latencies *l)
{
    json_t *j = service_report_latency_json(&l->all), *of = json_object();

    for (unsigned k = 0; k < SWAP_CALLS; k++)
        (void) json_object_set_new(of, call_names[k], service_report_latency_json(&l->of[k]));
    (void) json_object_set_new(j, "of", of);
    return j;
}

static json_t *service_report_swap_json(const struct swap_metrics *f)
{
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:{s:o, s:o}}", "swaps", (int) f->n_swaps,
                     "sequences", (json_int_t) f->n_sequences, "reads", (json_int_t) f->n_reads,
                     "matched_tokens", (json_int_t) f->n_matched, "published_tokens",
                     (json_int_t) f->n_published, "failed", (json_int_t) f->n_failed, "wrong",
                     (json_int_t) f->n_wrong, "failure", f->failure.text[0] ? f->failure.text : NULL, "us",
                     "swapping", service_report_latencies_json(&f->swapping), "quiet",
                     service_report_latencies_json(&f->quiet));
}

static json_t *service_report_restart_json(const struct restart_metrics *f, bool on_gpu)
{
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:o, s:o, s:o*}}", "restarts",
                     (int) f->n_restarts, "pages", (json_int_t) f->n_pages, "page_bytes",
                     (json_int_t) f->page_bytes, "found", (json_int_t) f->n_found, "sampled",
                     (json_int_t) f->n_sampled, "identical", (json_int_t) f->n_identical, "held",
                     (json_int_t) f->n_held, "lower_generations", (json_int_t) f->n_lower, "ms", "exit",
                     timing_json(f->exit, 1e3), "serving", timing_json(f->serving, 1e3), "gpu",
                     on_gpu ? timing_json(f->gpu, 1e3) : NULL);
}

/* NULL: the host's memory. */
static json_t *service_report_device_json(const struct bench_gpu *d)
{
    return d ? json_pack("{s:s, s:s, s:b}", "uuid", d->uuid, "name", d->name, "stand_in", d->is_standin)
             : NULL;
}

int service_print_json(const struct service_metrics *f, const struct service_options *o)
{
    struct verdict v[VERDICTS_MAX];
    size_t n = service_report_check(f, v);
    json_t *limits = json_array();
    char cpu[MACHINE_CPU_NAME_BYTES];

    machine_cpu_name(cpu);
    for (size_t i = 0; i < n; i++)
        (void) json_array_append_new(limits,
                                     json_pack("{s:s, s:s, s:f, s:f, s:b}", "what", v[i].what, "sense",
                                               v[i].sense == BELOW ? "below" : "exactly", "asked", v[i].limit,
                                               "got", v[i].measured, "met", service_report_is_met(&v[i])));
    return report_json(json_pack(
        "{s:s, s:s, s:I, s:i, s:o*, s:o*, s:o*, s:o*, s:o*, s:o}", "cpu", cpu, "compiler", COMPILER, "cpus",
        (json_int_t) sysconf(_SC_NPROCESSORS_ONLN), "clients", (int) o->n_clients, "gpu",
        service_report_device_json(o->device), "load", f->load ? service_report_load_json(f->load) : NULL,
        "memory", f->memory ? service_report_memory_json(f->memory) : NULL, "swap",
        f->swap ? service_report_swap_json(f->swap) : NULL, "restart",
        f->restart ? service_report_restart_json(f->restart, o->device) : NULL, "asked", limits));
}

/* ---- text ---- */

static void service_report_print_load(const struct load_metrics *f, unsigned n_clients)
{
    _cleanup_(report_freep) struct report *r = report_new("<microseconds\t>min\t>median\t>p99");
    const struct {
        const char *name;
        const struct timing *t;
    } rows[] = {
        {"exchange of packets", &f->ping},
        {"lease", &f->lease},
        {"commit", &f->commit},
        {"copy and CRC", &f->copy},
        {"lookup, per chunk", &f->lookup},
    };

    printf("\nload: %u clients, %zu rounds in all, pages of %zu bytes\n\n", n_clients, f->n_samples,
           f->page_bytes);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        report_row(r, "%s\t%.3f\t%.3f\t%.3f", rows[i].name, rows[i].t->min * 1e6, rows[i].t->median * 1e6,
                   rows[i].t->p99 * 1e6);
    report_print(r, stdout);
}

static void service_report_print_memory(const struct memory_metrics *f)
{
    _cleanup_(report_freep) struct report *r = report_new("<bytes per page\t>filled\t>churned");
    const struct memory_state *a = &f->filled, *b = &f->churned;
    const struct {
        const char *name;
        uint64_t filled, churned;
    } rows[] = {
        {"slot records", a->slot_records, b->slot_records},
        {"index", a->index, b->index},
        {"holds", a->holds, b->holds},
        {"heap", a->heap, b->heap},
        {"sum of these", a->slot_records + a->index + a->holds + a->heap,
         b->slot_records + b->index + b->holds + b->heap},
        {"resident (kernel)", a->resident, b->resident},
    };

    printf("\nmemory: %" PRIu64 " pages of %" PRIu64 " bytes in %.1f s, %" PRIu64 " sessions, %" PRIu64
           " leases; churned: %" PRIu64 " more pages, %" PRIu64 " evicted\n\n",
           a->n_pages, f->page_bytes, f->seconds, a->n_sessions, a->n_leases, f->n_churned, b->n_evicted);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        report_row(r, "%s\t%.2f\t%.2f", rows[i].name, (double) rows[i].filled / (double) a->n_pages,
                   (double) rows[i].churned / (double) b->n_pages);
    report_print(r, stdout);
}

static void service_report_swap_row(struct report *r, const char *call, const char *phase,
                                    const struct swap_latency *l)
{
    report_row(r, "%s\t%s\t%zu\t%.1f\t%.1f\t%.1f\t%.1f", call, phase, l->n, l->median * 1e6, l->p99 * 1e6,
               l->p999 * 1e6, l->max * 1e6);
}

static void service_report_print_swap(const struct swap_metrics *f, unsigned n_clients)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<microseconds\t<tables\t>calls\t>median\t>p99\t>p99.9\t>max");

    printf("\nswap: %u swaps, %u clients, %" PRIu64 " sequences; tokens: %" PRIu64 " published, %" PRIu64
           " matched; %" PRIu64 " reads compared\n\n",
           f->n_swaps, n_clients, f->n_sequences, f->n_published, f->n_matched, f->n_reads);
    if (f->failure.text[0])
        printf("first failure: %s\n\n", f->failure.text);
    service_report_swap_row(r, "all calls", "swapped", &f->swapping.all);
    service_report_swap_row(r, "", "unchanged", &f->quiet.all);
    for (unsigned k = 0; k < SWAP_CALLS; k++) {
        service_report_swap_row(r, call_names[k], "swapped", &f->swapping.of[k]);
        service_report_swap_row(r, "", "unchanged", &f->quiet.of[k]);
    }

    report_print(r, stdout);
}

static void service_report_print_restart(const struct restart_metrics *f, bool on_gpu)
{
    _cleanup_(report_freep) struct report *r = report_new("<milliseconds\t>min\t>median\t>max");

    printf("\nrestart: %u times, %" PRIu64 " pages of %" PRIu64 " bytes, all held; %" PRIu64
           " found, %" PRIu64 " of %" PRIu64 " compared identical, %" PRIu64 " held\n\n",
           f->n_restarts, f->n_pages, f->page_bytes, f->n_found, f->n_identical, f->n_sampled, f->n_held);
    report_row(r, "from SIGKILL to exit\t%.1f\t%.1f\t%.1f", f->exit.min * 1e3, f->exit.median * 1e3,
               f->exit.p99 * 1e3);
    report_row(r, "from start to first reply\t%.1f\t%.1f\t%.1f", f->serving.min * 1e3,
               f->serving.median * 1e3, f->serving.p99 * 1e3);
    if (on_gpu)
        report_row(r, "from start to first lease on the GPU\t%.1f\t%.1f\t%.1f", f->gpu.min * 1e3,
                   f->gpu.median * 1e3, f->gpu.p99 * 1e3);
    report_print(r, stdout);
}

static void service_report_print_limits(const struct service_metrics *f)
{
    _cleanup_(report_freep) struct report *r = report_new("<measured\t<\t>limit\t>value\t<");
    struct verdict v[VERDICTS_MAX];
    size_t n = service_report_check(f, v);

    putchar('\n');
    for (size_t i = 0; i < n; i++)
        report_row(r, "%s\t%s\t%g\t%.3f\t%s", v[i].what, v[i].sense == BELOW ? "below" : "exactly",
                   v[i].limit, v[i].measured, service_report_is_met(&v[i]) ? "" : "missed");
    report_print(r, stdout);
}

int service_print_text(const struct service_metrics *f, const struct service_options *o)
{
    char cpu[MACHINE_CPU_NAME_BYTES];

    machine_cpu_name(cpu);
    printf("%s, %ld processors\n", cpu, sysconf(_SC_NPROCESSORS_ONLN));
    if (o->device)
        printf("sessions on %s, %s; times include the queued work of a call\n", o->device->name,
               o->device->uuid);
    if (o->device && o->device->is_standin)
        puts(BENCH_STANDIN_NOTE);
    if (f->load)
        service_report_print_load(f->load, o->n_clients);
    if (f->memory)
        service_report_print_memory(f->memory);
    if (f->swap)
        service_report_print_swap(f->swap, o->n_clients);
    if (f->restart)
        service_report_print_restart(f->restart, o->device);
    if (o->quick)
        puts("\n--quick: the sizes are too small to compare with the limits");
    else
        service_report_print_limits(f);
    return COMMAND_OK;
}
