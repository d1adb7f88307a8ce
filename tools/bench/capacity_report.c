/* See capacity_report.h. */
#include "tools/bench/capacity_report.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/bench/machine.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/report.h"
#include "tools/page/page.h"

static double capacity_percent(const struct capacity_results *x, uint64_t hits)
{
    return 100 * (double) hits / (double) x->n_blocks;
}

static uint64_t capacity_tokens(const struct capacity_results *x, uint32_t blocks)
{
    return (uint64_t) blocks * x->block_tokens;
}

/* ---- text ---- */

static void capacity_print_head(const struct capacity_results *x)
{
    char cpu[MACHINE_CPU_NAME_BYTES], memory[HUMAN_BYTES], token[HUMAN_BYTES], disk[HUMAN_BYTES];

    machine_cpu_name(cpu);
    printf("%s, %u clients on %s\n%" PRIu32 " requests of %" PRIu64 " blocks, %" PRIu32
           " tokens each; %" PRIu32 " different blocks\n%s",
           x->trace, x->n_clients, cpu, x->n_requests, x->n_blocks, x->block_tokens, x->n_distinct,
           human_bytes(x->memory_bytes, memory));
    if (x->disk_bytes > 0)
        printf(", and a disk of %s,", human_bytes(x->disk_bytes, disk));
    printf(" for a model that needs %s per token in 16 bits\n\n", human_bytes(x->token_bytes, token));
}

static void capacity_print_disk(const struct capacity_results *x)
{
    _cleanup_(report_freep) struct report *t = report_new(
        ">bits\t>tokens on the disk\t>hits %\t>LRU %\t>without it\t>read\t>lost\t>request ms\t>p99");

    if (x->disk_bytes == 0)
        return;

    for (size_t i = 0; i < x->n_points; i++) {
        const struct capacity_point *p = &x->points[i];

        report_row(t, "%g\t%" PRIu64 "\t%.1f\t%.1f\t%.1f\t%" PRIu64 "\t%" PRIu64 "\t%.3f\t%.3f", p->bits,
                   capacity_tokens(x, p->with_disk.disk_capacity), capacity_percent(x, p->with_disk.hits),
                   capacity_percent(x, p->with_disk_lru_hits), capacity_percent(x, p->run.hits),
                   p->with_disk.n_read, p->with_disk.n_lost, p->with_disk.request.median * 1e3,
                   p->with_disk.request.p99 * 1e3);
    }
    printf("\nWith the disk:\n\n");
    report_print(t, stdout);
    printf(
        "\nread: blocks from the disk. lost: evicted before the disk had them. LRU: with room for what both "
        "hold.\n");
}

static void capacity_print_unpublished(double bits, const char *where, const struct capacity_run *r)
{
    if (r->n_unpublished > 0)
        printf("%g bits%s: %" PRIu64 " blocks were not stored: %s\n", bits, where, r->n_unpublished,
               r->why_unpublished.text);
}

int capacity_print_text(const struct capacity_results *x)
{
    _cleanup_(report_freep) struct report *t =
        report_new(">bits\t>tokens in the pool\t>hits %\t>LRU %\t>evicted\t>request ms\t>p99\t>seconds");

    capacity_print_head(x);
    for (size_t i = 0; i < x->n_points; i++) {
        const struct capacity_point *p = &x->points[i];

        report_row(t, "%g\t%" PRIu64 "\t%.1f\t%.1f\t%" PRIu64 "\t%.3f\t%.3f\t%.1f", p->bits,
                   capacity_tokens(x, p->run.capacity), capacity_percent(x, p->run.hits),
                   capacity_percent(x, p->lru_hits), p->run.n_evicted, p->run.request.median * 1e3,
                   p->run.request.p99 * 1e3, p->run.seconds);
    }

    report_print(t, stdout);
    printf("\nhits: blocks at the beginning of requests that were found. A pool without a limit: %.1f %%.\n"
           "LRU: the same size, dropping the least recently used block.\n",
           capacity_percent(x, x->ceiling_hits));
    capacity_print_disk(x);
    for (size_t i = 0; i < x->n_points; i++) {
        capacity_print_unpublished(x->points[i].bits, "", &x->points[i].run);
        capacity_print_unpublished(x->points[i].bits, " with the disk", &x->points[i].with_disk);
    }
    return COMMAND_OK;
}

/* ---- JSON ---- */

static json_t *capacity_disk(const struct capacity_results *x, const struct capacity_point *p)
{
    const struct capacity_run *r = &p->with_disk;

    return json_pack("{s:I, s:I, s:I, s:f, s:I, s:f, s:I, s:I, s:I, s:o, s:f}", "disk_tokens_asked",
                     (json_int_t) capacity_tokens(x, p->disk_asked), "disk_tokens",
                     (json_int_t) capacity_tokens(x, r->disk_capacity), "disk_hits", (json_int_t) r->hits,
                     "disk_hit_percent", capacity_percent(x, r->hits), "disk_lru_hits",
                     (json_int_t) p->with_disk_lru_hits, "disk_lru_percent",
                     capacity_percent(x, p->with_disk_lru_hits), "disk_read", (json_int_t) r->n_read,
                     "disk_lost", (json_int_t) r->n_lost, "disk_not_stored", (json_int_t) r->n_unpublished,
                     "disk_request_ms", timing_json(r->request, 1e3), "disk_seconds", r->seconds);
}

static json_t *capacity_rows(const struct capacity_results *x)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < x->n_points; i++) {
        const struct capacity_point *p = &x->points[i];
        json_t *row =
            json_pack("{s:f, s:I, s:I, s:I, s:f, s:I, s:f, s:I, s:I, s:o, s:f}", "bits", p->bits,
                      "tokens_asked", (json_int_t) capacity_tokens(x, p->asked), "tokens",
                      (json_int_t) capacity_tokens(x, p->run.capacity), "hits", (json_int_t) p->run.hits,
                      "hit_percent", capacity_percent(x, p->run.hits), "lru_hits", (json_int_t) p->lru_hits,
                      "lru_percent", capacity_percent(x, p->lru_hits), "evicted",
                      (json_int_t) p->run.n_evicted, "not_stored", (json_int_t) p->run.n_unpublished,
                      "request_ms", timing_json(p->run.request, 1e3), "seconds", p->run.seconds);

        if (x->disk_bytes > 0)
            json_object_update_new(row, capacity_disk(x, p));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *capacity_document(const struct capacity_results *x)
{
    char cpu[MACHINE_CPU_NAME_BYTES];

    machine_cpu_name(cpu);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:f, s:I, s:I, s:I, s:i, s:o}", "cpu", cpu,
                     "compiler", COMPILER, "trace", x->trace, "requests", (json_int_t) x->n_requests,
                     "blocks", (json_int_t) x->n_blocks, "different_blocks", (json_int_t) x->n_distinct,
                     "block_tokens", (int) x->block_tokens, "ceiling_percent",
                     capacity_percent(x, x->ceiling_hits), "memory_bytes", (json_int_t) x->memory_bytes,
                     "disk_bytes", (json_int_t) x->disk_bytes, "token_bytes", (json_int_t) x->token_bytes,
                     "clients", (int) x->n_clients, "points", capacity_rows(x));
}

int capacity_print_json(const struct capacity_results *x)
{
    return report_json(capacity_document(x));
}

/* ---- the page ---- */

int capacity_page(FILE *f, const struct capacity_results *x)
{
    _cleanup_(json_decrefp) json_t *document = capacity_document(x);

    return document ? page_write(f, PAGE_CAPACITY, document) : -ENOMEM;
}
