/* kvcobra merge: adds statistics, or moments, of several runs and machines. DESIGN 3.5. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/kvcobra-alloc.h"
#include "alloc/moments/moments.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "tools/command/command.h"
#include "tools/command/report.h"

#define INPUT_BYTES_MAX ((size_t) 64 << 30)

struct merge_arguments {
    struct common_options common;
    const char *output;
    char **inputs; /* [n_inputs] into argv */
    size_t n_inputs;
};

static const char doc[] =
    "Add the statistics of several runs of 'kvcobra calibrate', on one machine or many, as if one run had "
    "read all texts.\vAll files must have the same model, metrics, sinks, samples and key stride; the error "
    "names the difference. Their seeds may differ. Two files with the same window of a text are refused, "
    "since it would count twice. The sampled vectors with the smallest hashes stay, as in one run. The "
    "result does not depend on the order of the files, to the last bit. Files of moments (calibrate "
    "--moments-only, or collected by a daemon) are added in the same way.\n\n"
    "Example:\n\n"
    "  kvcobra merge monday.stats tuesday.stats -o both.stats";

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "The file to write (required)", 1},
    {0},
};

static error_t cmd_merge_parse(int key, char *arg, struct argp_state *state)
{
    struct merge_arguments *a = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        a->inputs = calloc((size_t) state->argc, sizeof(*a->inputs));
        return a->inputs ? 0 : ENOMEM;
    case 'o':
        a->output = arg;
        return 0;
    case ARGP_KEY_ARG:
        a->inputs[a->n_inputs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->n_inputs < 2 || !a->output)
            argp_error(state, "two or more files and -o FILE are needed");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_merge_parse, "FILE FILE...", doc, common_children, NULL, NULL};

/* A file. Sums are added in the order of the files' SHA-256, so that the order of the arguments has no
 * effect. */
struct cmd_merge_input {
    const char *path;
    kvc_stats *stats; /* one of the two; both NULL: not loaded */
    struct moments *moments;
    uint8_t digest[DIGEST_BYTES];
    bool is_moments;
};

static void cmd_merge_free_inputs(struct cmd_merge_input *inputs, size_t n)
{
    for (size_t i = 0; inputs && i < n; i++) {
        (void) kvc_stats_free(inputs[i].stats);
        (void) moments_free(inputs[i].moments);
    }

    free(inputs);
}

static int cmd_merge_load_moments(struct cmd_merge_input *x, struct errmsg *e)
{
    _cleanup_(freep) uint8_t *bytes = NULL;
    struct errmsg why = {""};
    size_t n = 0;
    int r = atomic_file_read(x->path, INPUT_BYTES_MAX, (void **) &bytes, &n, e);

    if (r < 0)
        return r;

    r = moments_parse(bytes, n, &x->moments, &why);
    return r < 0 ? fail(e, r, "%.120s: %.240s", x->path, why.text) : 0;
}

static int cmd_merge_load(kvc_alloc *alloc, struct cmd_merge_input *x, struct errmsg *e)
{
    int r;

    if (x->is_moments)
        return cmd_merge_load_moments(x, e);

    r = kvc_stats_load(alloc, x->path, NULL, &x->stats);
    return r < 0 ? fail(e, r, "%s", kvc_alloc_error(alloc)) : 0;
}

/* Reads the kind of a file at its beginning, and the digest at its end, for the order: files of large
 * models are loaded one at a time. */
static int cmd_merge_read_digest(struct cmd_merge_input *x)
{
    _cleanup_(closep) int fd = open(x->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    uint8_t head[DIGEST_BYTES];
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < DIGEST_BYTES ||
        fd_pread_all(fd, head, sizeof(head), 0) < 0)
        return -EINVAL;

    x->is_moments = moments_recognise(head, sizeof(head));
    return fd_pread_all(fd, x->digest, DIGEST_BYTES, (uint64_t) st.st_size - DIGEST_BYTES);
}

static int cmd_merge_compare_inputs(const void *a, const void *b)
{
    return memcmp(((const struct cmd_merge_input *) a)->digest, ((const struct cmd_merge_input *) b)->digest,
                  DIGEST_BYTES);
}

static int cmd_merge_add(kvc_alloc *alloc, struct cmd_merge_input *to, const struct cmd_merge_input *from,
                         struct errmsg *e)
{
    struct errmsg why = {""};
    int r;

    if (to->is_moments != from->is_moments)
        return fail(e, -EINVAL, "%s holds moments and %s statistics: they cannot be added",
                    (to->is_moments ? to : from)->path, (to->is_moments ? from : to)->path);

    r = to->stats ? kvc_stats_merge(to->stats, from->stats) : moments_merge(to->moments, from->moments, &why);
    if (r < 0)
        return fail(e, r, "%.100s cannot be added to %.100s: %.150s", from->path, to->path,
                    to->stats ? kvc_alloc_error(alloc) : why.text);

    return 0;
}

/* Sorts the inputs and refuses those that occur twice. */
static int cmd_merge_order(kvc_alloc *alloc, const struct merge_arguments *a, struct cmd_merge_input *inputs,
                           struct errmsg *e)
{
    for (size_t i = 0; i < a->n_inputs; i++) {
        inputs[i].path = a->inputs[i];
        if (cmd_merge_read_digest(&inputs[i]) < 0) {
            int r = cmd_merge_load(alloc, &inputs[i], e); /* for its error sentence */

            if (r < 0)
                return r;
        }
    }

    qsort(inputs, a->n_inputs, sizeof(*inputs), cmd_merge_compare_inputs);
    for (size_t i = 1; i < a->n_inputs; i++)
        if (cmd_merge_compare_inputs(&inputs[i - 1], &inputs[i]) == 0)
            return fail(e, -EINVAL, "%.200s and %.200s have the same contents, which would count twice",
                        inputs[i - 1].path, inputs[i].path);
    return 0;
}

static int cmd_merge_load_once(kvc_alloc *alloc, struct cmd_merge_input *x, struct errmsg *e)
{
    return x->stats || x->moments ? 0 : cmd_merge_load(alloc, x, e);
}

static int cmd_merge_add_all(kvc_alloc *alloc, const struct merge_arguments *a,
                             struct cmd_merge_input *inputs, struct errmsg *e)
{
    int r = atomic_file_check(a->output, e); /* one of the inputs may be replaced by the sum */

    if (r == 0)
        r = cmd_merge_order(alloc, a, inputs, e);
    if (r == 0)
        r = cmd_merge_load_once(alloc, &inputs[0], e);
    for (size_t i = 1; r == 0 && i < a->n_inputs; i++) {
        r = cmd_merge_load_once(alloc, &inputs[i], e);
        if (r == 0)
            r = cmd_merge_add(alloc, &inputs[0], &inputs[i], e);
        inputs[i].stats = kvc_stats_free(inputs[i].stats);
        inputs[i].moments = moments_free(inputs[i].moments);
    }

    if (r < 0 || inputs[0].moments)
        return r < 0 ? r : moments_save(inputs[0].moments, a->output, e);

    r = kvc_stats_save(inputs[0].stats, a->output);
    return r < 0 ? fail(e, r, "%s", kvc_alloc_error(alloc)) : 0;
}

static int cmd_merge_print_result(const struct merge_arguments *a, const struct cmd_merge_input *all)
{
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    uint64_t tokens;

    if (all->stats && kvc_stats_get_info(all->stats, &info) < 0)
        return command_fail("%s: the sum cannot be described", a->output);

    tokens = all->stats ? info.tokens : moments_count(all->moments, 0, 0);
    if (a->common.json)
        return report_json(json_pack("{s:s, s:I, s:I, s:I, s:b}", "output", a->output, "files",
                                     (json_int_t) a->n_inputs, "tokens", (json_int_t) tokens, "samples",
                                     (json_int_t) info.samples, "moments", (int) (all->moments != NULL)));

    printf("%s: %ju tokens of %zu files", a->output, (uintmax_t) tokens, a->n_inputs);
    if (all->stats)
        printf(", vectors of %ju\n", (uintmax_t) info.samples);
    else
        printf(", moments only\n");
    return COMMAND_OK;
}

static int cmd_merge_run(int argc, char **argv)
{
    struct merge_arguments a = {0};
    struct cmd_merge_input *inputs;
    kvc_alloc *alloc = NULL;
    struct errmsg e = {""};
    int code;

    command_parse(&argp, argc, argv, &a);
    inputs = calloc(a.n_inputs, sizeof(*inputs));
    if (!inputs || kvc_alloc_new(&alloc) < 0)
        code = command_fail("out of memory for %zu files", a.n_inputs);
    else
        code = cmd_merge_add_all(alloc, &a, inputs, &e) < 0 ? command_fail("%s", e.text)
                                                            : cmd_merge_print_result(&a, &inputs[0]);
    cmd_merge_free_inputs(inputs, a.n_inputs);
    (void) kvc_alloc_free(alloc);
    free(a.inputs);
    return code;
}

COMMAND(cmd_merge) = {
    .name = "merge",
    .summary = "add the statistics of several runs",
    .run = cmd_merge_run,
    .rank = 30,
    .related = "calibrate",
};
