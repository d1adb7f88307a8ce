/*
 * kvcobra inspect FILE: shows an allocation table or a statistics file as text, as JSON, or as an HTML page.
 * The first bytes of the file tell which of the two it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/moments/moments.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_kind.h"
#include "base/stream_file.h"
#include "tools/command/command.h"
#include "tools/command/option.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/inspect/inspect.h"

struct inspect_options {
    struct common_options common;
    const char *path, *stats, *eval, *html;
    double budgets[INSPECT_BUDGETS_MAX];
    size_t n_budgets;
    bool has_budgets; /* given, also as none */
};

enum { OPT_STATS = 0x100, OPT_EVAL, OPT_HTML, OPT_BUDGETS };

static const struct argp_option options[] = {
    {"stats", OPT_STATS, "STATS", 0,
     "With a table: statistics to analyse it with, best the statistics of its solve", 0},
    {"eval", OPT_EVAL, "FILE", 0,
     "With a table: output of kvcobra eval --json with this table, whose perplexity and KL are shown", 0},
    {"html", OPT_HTML, "OUT", 0, "Write an HTML page with plots, which loads no other file", 0},
    {"budgets", OPT_BUDGETS, "LIST", 0,
     "Ascending bits per number, such as 1,2,3,4, at which all methods are solved for rate-distortion "
     "curves, "
     "which takes minutes; none: no curves (default)",
     0},
    {0},
};

static const char doc[] =
    "Show the contents of an allocation table or a statistics file.\vFor a table: its provenance, its bytes "
    "per token and per page, and the distribution of bits over layers and heads (number of stored "
    "coordinates, then bits per original number). The file is checked completely first, as by the daemon.\n\n"
    "--html writes a page that begins with what the table costs and gives: perplexity and KL (--eval), GiB "
    "of a "
    "context, tokens per GiB, and the distortion beside that of equal budgets. Then it shows where the bits "
    "went: maps of ranks and bits, the distortion of each head, rate-distortion curves of all methods, "
    "spectra, "
    "the Gaussianity of coordinates, and levels. --json prints all numbers of that page. A table alone has "
    "memory, maps and levels; the other parts need statistics. The curves take about 25 s per budget for a "
    "model of 30 layers and 3 KV heads on two cores, the other parts 16 s together.\n\n"
    "Example:\n\n"
    "  kvcobra inspect model-3.table\n"
    "  kvcobra inspect model-3.table --json | jq .bpd_code\n"
    "  kvcobra eval model.gguf --table 3.table --text book.txt --json > 3.json\n"
    "  kvcobra inspect 3.table --stats model.stats --eval 3.json --html 3.html\n"
    "  kvcobra inspect model.stats --budgets 2,3 --html model.html";

/* "1,1.5,3": ascending; "none": no budgets. */
static void cmd_inspect_take_budgets(struct inspect_options *o, const char *arg, struct argp_state *state)
{
    _cleanup_(freep) char *copy = strdup(arg);
    char *rest = copy;

    o->n_budgets = 0;
    o->has_budgets = true;
    if (!copy)
        argp_failure(state, COMMAND_FAILED, ENOMEM, "--budgets");
    if (strcmp(arg, "none") == 0)
        return;

    for (const char *word; (word = strsep(&rest, ","));) {
        double bpd = option_double(state, "--budgets", word, 0.05, TABLE_BITS_MAX);

        if (o->n_budgets == INSPECT_BUDGETS_MAX)
            argp_error(state, "--budgets takes at most %d budgets", INSPECT_BUDGETS_MAX);
        if (o->n_budgets > 0 && bpd <= o->budgets[o->n_budgets - 1])
            argp_error(state, "--budgets: '%s' is not ascending", arg);
        o->budgets[o->n_budgets++] = bpd;
    }
}

static error_t cmd_inspect_parse(int key, char *arg, struct argp_state *state)
{
    struct inspect_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_STATS:
        o->stats = arg;
        return 0;
    case OPT_EVAL:
        o->eval = arg;
        return 0;
    case OPT_HTML:
        o->html = arg;
        return 0;
    case OPT_BUDGETS:
        cmd_inspect_take_budgets(o, arg, state);
        return 0;
    case ARGP_KEY_ARG:
        if (o->path)
            argp_error(state, "one FILE only; '%s' is one argument too many (--stats adds statistics)", arg);
        o->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->path)
            argp_error(state, "a file is needed");
        if (o->has_budgets && !o->html && !o->common.json)
            argp_error(state, "--budgets needs --html or --json");
        if (o->eval && !o->html && !o->common.json)
            argp_error(state, "--eval needs --html or --json");
        if (o->html && stream_file_is_standard(o->html) && o->common.json)
            argp_error(state, "--html - and --json both write standard output: give the page a name");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_inspect_parse, "FILE", doc, common_children, NULL, NULL};

/* The first bytes of a file. Non-blocking: opening a FIFO must not wait for a writer. */
static int cmd_inspect_read_first(const char *path, char ret[static FILE_KIND_BYTES], size_t *ret_n,
                                  struct errmsg *e)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s is not a regular file", path);
    n = read(fd, ret, FILE_KIND_BYTES);
    if (n < 0)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));

    *ret_n = (size_t) n;
    return 0;
}

/* Fills in whether FILE is a table or statistics. */
static int cmd_inspect_recognise(const struct inspect_options *o, struct inspect_request *ret,
                                 struct errmsg *e)
{
    char first[FILE_KIND_BYTES] = "";
    size_t n = 0;
    int r = atomic_file_check_input(o->path, e);

    if (r == 0)
        r = cmd_inspect_read_first(o->path, first, &n, e);
    if (r < 0)
        return r;

    *ret = (struct inspect_request){.stats_path = o->stats, .n_budgets = o->n_budgets};
    memcpy(ret->budgets, o->budgets, sizeof(ret->budgets));
    if (memcmp(first, "KVCTABLE", 8) == 0) {
        ret->table_path = o->path;
        return 0;
    }

    if (memcmp(first, "KVCSTATS", 8) != 0 && !moments_recognise(first, n))
        return fail(e, -EINVAL, "%s is neither an allocation table nor a statistics file but %s", o->path,
                    file_kind_of(first, n));
    if (o->stats)
        return fail(e, -EINVAL, "%s is a statistics file; --stats is for tables", o->path);

    if (o->eval)
        return fail(e, -EINVAL, "%s is a statistics file; --eval is for tables", o->path);

    ret->stats_path = o->path;
    return 0;
}

static int cmd_inspect_write_page(const struct inspection *x, const json_t *document, const char *path,
                                  struct errmsg *e)
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(fclosep) FILE *f = NULL;
    size_t n;
    int r;

    f = open_memstream(&text, &n);
    if (!f)
        return fail(e, -ENOMEM, "out of memory for the page");

    r = inspect_page(f, x, document);
    if (ferror(f) || fclose(take_ptr(f)) != 0 || r < 0)
        return fail(e, -ENOMEM, "out of memory for the page");

    return stream_file_write(path, text, n, e);
}

/* The page, the JSON, or both. */
static int cmd_inspect_show_document(struct inspection *x, const struct inspect_options *o)
{
    _cleanup_(progress_end) struct progress p = {0};
    _cleanup_(json_decrefp) json_t *document = NULL;
    struct errmsg e = {""};

    progress_start(&p, "inspecting", NULL, 1, o->common.quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    if (inspection_fill(x, &p, &e) < 0)
        return command_fail("%s", e.text);

    progress_end(&p);
    document = inspect_document(x);
    if (!document)
        return command_fail("out of memory for the numbers");
    if (o->html && cmd_inspect_write_page(x, document, o->html, &e) < 0)
        return command_fail("%s", e.text);
    if (o->common.json)
        return report_json(take_ptr(document));

    if (stream_file_is_standard(o->html))
        return COMMAND_OK;
    printf("wrote %s, a page of this %s\n", o->html, x->table ? "table" : "statistics file");
    return COMMAND_OK;
}

static int cmd_inspect_show_text(const struct inspection *x)
{
    int r = COMMAND_OK;

    if (x->table)
        r = inspect_table_text(x);
    if (x->table && x->stats)
        putchar('\n');
    return r == COMMAND_OK && x->stats ? inspect_stats_text(x) : r;
}

static int cmd_inspect_run(int argc, char **argv)
{
    _cleanup_(inspection_close) struct inspection x = {.n_points = 0};
    struct inspect_options o = {.n_budgets = 0};
    struct inspect_request request;
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (o.html && output_check_text(o.html, (const char *const[]){o.path, o.stats, o.eval}, 3, &e) < 0)
        return command_fail("%s", e.text);
    if (cmd_inspect_recognise(&o, &request, &e) < 0 || inspection_open(&x, &request, &e) < 0 ||
        (o.eval && inspection_read_eval(&x, o.eval, &e) < 0))
        return command_fail("%s", e.text);

    return o.html || o.common.json ? cmd_inspect_show_document(&x, &o) : cmd_inspect_show_text(&x);
}

COMMAND(cmd_inspect) = {
    .name = "inspect",
    .summary = "show a table or a statistics file",
    .run = cmd_inspect_run,
    .rank = 10,
    .related = "solve compare",
};
