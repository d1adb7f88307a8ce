/* First half of the demonstration: the memory that compression saves and the accuracy that it costs. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/demo/demo.h"

/* Both Debian documents begin with a table of contents, which is no running text and ends before this
 * line. */
#define FIRST_LINE "1200"

enum { CONTEXT = 4096 }; /* tokens that sizes are printed for */

/* The result of `kvcobra eval --json` for one table. */
struct cost {
    double ppl_exact, ppl, kl, bpd_code, tokens, numbers;
};

/* The caller has printed the command line, without the script's quoting. */
static int demo_compress_run_shell(const struct demo *d, const char *label, const char *const *argv,
                                   struct errmsg *e)
{
    _cleanup_(process_deinit) struct process p = PROCESS_INIT(label);
    struct process *ps[] = {&p};
    int r;

    (void) fflush(stdout);
    r = process_start(&p, "/bin/sh", argv, PROCESS_SHOW, e);
    if (r < 0)
        return r;

    r = process_wait(ps, 1, 0, PROCESS_EXITS, d->signal_fd, e);
    if (r < 0)
        return r;

    return process_succeeded(&p, e) ? 0 : -ECANCELED;
}

/* Paths travel as arguments, not inside the script: no quoting can go wrong. */
static int demo_compress_unpack(const struct demo *d, const char *from, bool skip_contents, const char *to,
                                struct errmsg *e)
{
    static const char plain[] = "cat -- \"$1\" > \"$2\"";
    static const char packed[] = "gzip -dc -- \"$1\" > \"$2\"";
    static const char skipping[] = "gzip -dc -- \"$1\" | tail -n +" FIRST_LINE " > \"$2\"";
    size_t n = strlen(from);
    bool gz = n > 3 && strcmp(from + n - 3, ".gz") == 0;
    const char *argv[] = {"sh", "-euc", gz ? packed : plain, "sh", from, to, NULL};

    if (skip_contents)
        argv[2] = skipping;

    terminal_print(stdout, 2, "$ %s %s %s> %s\n", gz ? "gzip -dc" : "cat", from,
                   skip_contents ? "| tail -n +" FIRST_LINE " " : "", to);
    return demo_compress_run_shell(d, "unpacking a text", argv, e);
}

static int demo_compress_cut_prompt(const struct demo *d, const char *from, const char *to, struct errmsg *e)
{
    const char *argv[] = {"sh", "-euc", "head -c \"$3\" -- \"$1\" > \"$2\"", "sh", from, to, d->prompt_bytes,
                          NULL};

    terminal_print(stdout, 2, "$ head -c %s %s > %s\n", d->prompt_bytes, from, to);
    return demo_compress_run_shell(d, "cutting the prompt", argv, e);
}

static int demo_compress_prepare_texts(const struct demo *d, struct errmsg *e)
{
    struct demo_path calibrate = demo_path(d, "calibrate.txt"), evaluate = demo_path(d, "evaluate.txt"),
                     prompt = demo_path(d, "prompt.txt");
    int r;

    demo_heading("Two texts: one to calibrate on, %s, and another to measure on, %s", d->text[0], d->text[1]);
    r = demo_compress_unpack(d, d->text[0], d->is_default_text[0], calibrate.text, e);
    if (r < 0)
        return r;

    r = demo_compress_unpack(d, d->text[1], d->is_default_text[1], evaluate.text, e);
    return r < 0 ? r : demo_compress_cut_prompt(d, evaluate.text, prompt.text, e);
}

/* Gradients: a backward pass through the model takes a third of the time of depth weights (2026-11). The text
 * alone: the demonstration measures on text of its kind, and the model's own text would take time. */
static int demo_compress_calibrate(const struct demo *d, struct errmsg *e)
{
    struct demo_path text = demo_path(d, "calibrate.txt"), stats = demo_path(d, "model.stats");
    const char *args[] = {"calibrate",         d->model,   "--text", text.text, "--tokens",
                          d->calibrate_tokens, "--metric", "fisher", "-o",      stats.text,
                          "--own-share",       "0",        NULL};
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra calibrate");

    demo_heading("Calibrate: measure which directions of the cache matter to this model, and how much");
    return demo_run(d, &p, PROCESS_SHOW, args, e);
}

static struct demo_path demo_compress_table_path(const struct demo *d, const char *budget)
{
    char name[32];

    (void) snprintf(name, sizeof(name), "model-%s.table", budget);
    return demo_path(d, name);
}

static int demo_compress_solve(const struct demo *d, const char *budget, struct errmsg *e)
{
    struct demo_path stats = demo_path(d, "model.stats"), table = demo_compress_table_path(d, budget);
    const char *args[] = {"solve", stats.text, "--bpd", budget, "-o", table.text, NULL};
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra solve");

    return demo_run(d, &p, PROCESS_SHOW, args, e);
}

static int demo_compress_parse_cost(const char *text, struct cost *ret, struct errmsg *e)
{
    json_t *json = json_loads(text ? text : "", 0, NULL);
    int r = json_unpack(json, "{s:F, s:F, s:F, s:F, s:F, s:F}", "ppl_exact", &ret->ppl_exact, "ppl",
                        &ret->ppl, "kl", &ret->kl, "bpd_code", &ret->bpd_code, "tokens", &ret->tokens,
                        "numbers", &ret->numbers);

    json_decref(json);
    return r < 0 ? fail(e, -EBADMSG, "cannot read what kvcobra eval --json printed") : 0;
}

static int demo_compress_evaluate(const struct demo *d, const char *budget, struct cost *ret,
                                  struct errmsg *e)
{
    struct demo_path text = demo_path(d, "evaluate.txt"), table = demo_compress_table_path(d, budget);
    const char *args[] = {"eval",     d->model,       "--table",  table.text,     "--text", text.text,
                          "--tokens", d->eval_tokens, "--window", d->eval_window, "--json", NULL};
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra eval");
    int r = demo_run(d, &p, PROCESS_CAPTURE, args, e);

    return r < 0 ? r : demo_compress_parse_cost(p.out, ret, e);
}

/*
 * Bytes of a sequence of CONTEXT tokens, as the pool and a client have them: codes; the first 4 and the
 * newest 64 to 127 tokens in binary16; a header per page. The evaluation's own windows are too short to be
 * typical.
 */
static double demo_compress_bytes(const struct cost *c)
{
    enum { EXACT = 4, TAIL = 96, CHUNK = 64, HEADER = 128 };
    double numbers = c->numbers / c->tokens, packed = CONTEXT - TAIL; /* per token; tokens in pages */

    return numbers * (packed * c->bpd_code / 8 + (EXACT + TAIL) * 2) + packed / CHUNK * HEADER;
}

static void demo_compress_print_costs(const struct cost costs[DEMO_BUDGETS])
{
    _cleanup_(report_freep) struct report *r =
        report_new("<cache\t>bits per number\t>4096 tokens\t>smaller\t>perplexity\t>KL, nats");
    double exact = costs[0].numbers / costs[0].tokens * 2 * CONTEXT;
    char size[HUMAN_BYTES];

    report_row(r, "exact, binary16\t16.000\t%s\t1.0x\t%.3f\t0", human_bytes((uint64_t) exact, size),
               costs[0].ppl_exact);
    for (size_t i = 0; i < DEMO_BUDGETS; i++) {
        const struct cost *c = &costs[i];

        report_row(r, "%s bits\t%.3f\t%s\t%.1fx\t%.3f\t%.5f", demo_budgets[i], c->bpd_code,
                   human_bytes((uint64_t) demo_compress_bytes(c), size), exact / demo_compress_bytes(c),
                   c->ppl, c->kl);
    }

    putchar('\n');
    report_print(r, stdout);
    terminal_print(
        stdout, 0,
        "\nKL is the distance between the answers of both models, 0 if they are the same. The first "
        "and the newest tokens stay exact, and count in the size.\n");
}

int demo_compress(const struct demo *d, struct errmsg *e)
{
    struct cost costs[DEMO_BUDGETS];
    int r = demo_compress_prepare_texts(d, e);

    if (r < 0)
        return r;

    r = demo_compress_calibrate(d, e);
    if (r < 0)
        return r;

    demo_heading("Solve: spend 3 and 4 bits per number where they matter most");
    for (size_t i = 0; i < DEMO_BUDGETS && r == 0; i++)
        r = demo_compress_solve(d, demo_budgets[i], e);
    if (r < 0)
        return r;

    demo_heading("Evaluate: the accuracy of each table on the other text, and its size");
    for (size_t i = 0; i < DEMO_BUDGETS && r == 0; i++)
        r = demo_compress_evaluate(d, demo_budgets[i], &costs[i], e);
    if (r == 0)
        demo_compress_print_costs(costs);
    return r;
}
