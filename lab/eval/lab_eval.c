/* See lab_eval.h. */
#include "lab/eval/lab_eval.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "alloc/stats/stats.h"
#include "alloc/stats/stats_rotate.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "lab/comparators/comparator.h"
#include "lab/eval/comparator_subject.h"
#include "lab/eval/retrieval.h"
#include "lab/eval/ruler_text.h"
#include "lab/lab.h"
#include "tools/command/command.h"
#include "tools/command/option.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_extension.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/subject.h"

enum {
    OPT_COMPARATOR = 0x2001,
    OPT_STATS,
    OPT_POST_ROPE,
    OPT_RETRIEVAL,
    OPT_TOGETHER,
    OPT_LENGTHS,
    OPT_RULER,
    OPT_TASKS,
    OPT_SEED
};

enum {
    DEFAULT_RETRIEVAL_WINDOW = 3072,
    DEFAULT_RULER_WINDOW = 2048,
    DEFAULT_TOKENS = 8192,
    KEYS_MAX = 100000
};

static const char doc[] =
    "Compare compressed caches with the exact model: tables, as kvcobra eval does, other formats, and tables "
    "of keys after RoPE; by perplexity and divergence, or by questions.\v"
    "kvcobra eval --help describes what all rows have in common. Other formats, by --comparator, are printed "
    "as rows beside the tables, by bits: q8_0, q4_0, q4_0-rot (ggml); kivi-2, kivi-4; gear-2; quarot-3, "
    "quarot-4; turboquant-2, -3, -4; tcq-2, -3; kvarn-2, -3, -4; and, calibrated with --stats, kvquant-2, "
    "-3, -4; svdq-2; kqsvd-2, -3, "
    "-4; oscar-2. They are implemented from their papers, for this measurement alone.\n\n"
    "--retrieval hides five-digit keys in the text and asks for them: at several lengths, and five depths, "
    "in turn, or with --together at several depths of each text. The exact model is asked for the same keys; "
    "differences from it have a paired 95 % interval. "
    "--ruler asks questions in the manner of RULER, on texts of its own: single, multi-key, multi-value, "
    "multi-query, variables, common-words, frequent-words.\n\n"
    "Examples: other formats; retrieval; tasks:\n\n"
    "  kvcobra-lab eval model.gguf --text book.txt --table 3.table --comparator q4_0\n"
    "  kvcobra-lab eval model.gguf --text book.txt --table 3.table --retrieval 100\n"
    "  kvcobra-lab eval model.gguf --table 3.table --ruler 20 --lengths 1024,4096";

static const struct argp_option options[] = {
    {"comparator", OPT_COMPARATOR, "NAME,...", 0, "Other formats to compare with; all: all formats", 1},
    {"stats", OPT_STATS, "STATS", 0, "Statistics for the calibrated formats kvquant, svdq, kqsvd and oscar",
     1},
    {"post-rope", OPT_POST_ROPE, "STATS", 0,
     "Instead: compare the table with one solved in the same way from keys after RoPE; STATS: the statistics "
     "that the table was solved from",
     4},
    {"retrieval", OPT_RETRIEVAL, "N", 0,
     "Instead: hide N keys in the text, and count the keys that are found", 4},
    {"together", OPT_TOGETHER, "N", 0,
     "Keys of --retrieval that are hidden in one text, each with a name, which is read once for all of them "
     "(default 1)",
     4},
    {"lengths", OPT_LENGTHS, "N,...", 0,
     "Tokens of the texts of --retrieval, in turn (default: a quarter, half, three quarters and all of "
     "--window, default 3072), and of --ruler (default: --window)",
     4},
    {"ruler", OPT_RULER, "N", 0, "Instead: ask N synthetic questions of each task, without --text", 4},
    {"tasks", OPT_TASKS, "TASK,...", 0, "Tasks of --ruler (default: all)", 4},
    {"seed", OPT_SEED, "N", 0, "Seed of the keys and of the beginnings of texts (default 0)", 4},
    {0},
};

/* ---- options ---- */

/* "q4_0,kivi-2", "all" */
static void lab_eval_take_comparators(struct lab_eval *x, char *arg, const struct argp_state *state)
{
    char *rest = arg;

    for (const char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
        bool all = strcmp(name, "all") == 0;

        if (!all && !comparator_find(name))
            argp_error(state, "--comparator: unknown format '%s'; kvcobra-lab eval --help lists all", name);
        for (size_t i = 0; comparators[i]; i++) {
            if (!all && comparators[i] != comparator_find(name))
                continue;
            if (x->n_comparators == EVAL_ADDED_MAX)
                argp_error(state, "at most %d formats at a time", EVAL_ADDED_MAX);
            x->comparators[x->n_comparators++] = comparators[i];
        }
    }
}

/* "1024,4096" */
static void lab_eval_take_lengths(struct lab_eval *x, char *arg, const struct argp_state *state)
{
    char *rest = arg;

    x->n_lengths = 0;
    for (const char *one = strsep(&rest, ","); one; one = strsep(&rest, ",")) {
        if (x->n_lengths == LAB_EVAL_LENGTHS_MAX)
            argp_error(state, "--lengths takes at most %d numbers", LAB_EVAL_LENGTHS_MAX);
        x->lengths[x->n_lengths++] = option_uint(state, "--lengths", one, 2, (uint64_t) 1 << 24);
    }
}

/* "single,variables" */
static void lab_eval_take_tasks(struct lab_eval *x, char *arg, const struct argp_state *state)
{
    char *rest = arg;

    for (const char *one = strsep(&rest, ","); one; one = strsep(&rest, ",")) {
        int t = ruler_task_find(one);

        if (t < 0)
            argp_error(state, "--tasks: unknown task '%s'; kvcobra-lab eval --help lists all", one);
        x->tasks |= 1u << t;
    }
}

static error_t lab_eval_parse(int key, char *arg, struct argp_state *state)
{
    struct lab_eval *x = lab_eval_of(state->input);

    switch (key) {
    case OPT_COMPARATOR:
        lab_eval_take_comparators(x, arg, state);
        return 0;
    case OPT_STATS:
        x->stats = arg;
        return 0;
    case OPT_POST_ROPE:
        x->post_rope = arg;
        return 0;
    case OPT_RETRIEVAL:
        x->n_keys = option_uint(state, "--retrieval", arg, 1, KEYS_MAX);
        return 0;
    case OPT_TOGETHER:
        x->n_together = option_uint(state, "--together", arg, 1, RETRIEVAL_TOGETHER_MAX);
        return 0;
    case OPT_RULER:
        x->n_ruler = option_uint(state, "--ruler", arg, 1, KEYS_MAX);
        return 0;
    case OPT_LENGTHS:
        lab_eval_take_lengths(x, arg, state);
        return 0;
    case OPT_TASKS:
        lab_eval_take_tasks(x, arg, state);
        return 0;
    case OPT_SEED:
        x->seed = option_uint(state, "--seed", arg, 0, INT64_MAX); /* JSON has no larger one */
        x->seed_given = true;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

/* Without --lengths: @n_parts parts of the window. */
static void lab_eval_set_lengths(struct lab_eval *x, const struct eval_options *o, size_t n_parts)
{
    if (x->n_lengths > 0)
        return;

    x->n_lengths = n_parts;
    for (size_t i = 0; i < n_parts; i++)
        x->lengths[i] = o->window * (i + 1) / n_parts;
}

/* Options of the trials alone. */
static void lab_eval_check_trials(const struct lab_eval *x, const struct eval_options *o,
                                  const struct argp_state *state)
{
    bool trials = x->n_keys > 0 || x->n_ruler > 0;

    if (trials && o->n_tokens > 0)
        argp_error(state,
                   "--retrieval and --ruler exclude --tokens: --window or --lengths set the length of texts");
    if (!trials && x->seed_given)
        argp_error(state, "--seed needs --retrieval or --ruler");
    if (!trials && x->n_lengths > 0)
        argp_error(state, "--lengths needs --retrieval or --ruler");
    if (x->n_lengths > 0 && o->window > 0)
        argp_error(state, "--lengths and --window exclude each other: both set the lengths of texts");
    if (x->n_together > 0 && x->n_keys == 0)
        argp_error(state, "--together needs --retrieval");
    if (x->n_together > 0 && x->n_keys % x->n_together != 0)
        argp_error(state, "--retrieval %zu is no multiple of --together %zu: each text has as many keys",
                   x->n_keys, x->n_together);
    if (x->tasks && x->n_ruler == 0)
        argp_error(state, "--tasks needs --ruler");
    if (x->n_ruler > 0 && o->text)
        argp_error(state, "--ruler writes its own texts and takes no --text");
}

/* What measures in place of `eval`. */
static void lab_eval_check_measurement(const struct lab_eval *x, const struct eval_options *o,
                                       const struct argp_state *state)
{
    int n = (x->n_keys > 0) + (x->n_ruler > 0) + (x->post_rope != NULL);

    if (n > 1 || (n == 1 && (o->n_generated > 0 || o->hits || o->quartiles || o->budgets)))
        argp_error(state, "--retrieval, --ruler, --post-rope, --generate, --hits, --quartiles and --budgets "
                          "exclude each other");
    if (n == 1 && (o->n_texts > 1 || o->n_recents > 1))
        argp_error(state, "--retrieval, --ruler and --post-rope take one --text and one number of --recent");
    if (x->post_rope && (o->n_tables != 1 || x->n_comparators > 0))
        argp_error(state, "--post-rope takes exactly one --table and no --comparator");
}

static void lab_eval_check_stats(const struct lab_eval *x, const struct argp_state *state)
{
    bool calibrated = false;

    for (size_t i = 0; i < x->n_comparators; i++)
        calibrated = calibrated || x->comparators[i]->calibrated;
    if (calibrated && !x->stats)
        argp_error(state, "kvquant, svdq, kqsvd and oscar are calibrated: they need --stats");
    if (!calibrated && x->stats)
        argp_error(state, "--stats is for kvquant, svdq, kqsvd and oscar");
}

static void lab_eval_check(struct eval_options *o, const struct argp_state *state)
{
    struct lab_eval *x = lab_eval_of(o);
    size_t longest = 0;

    lab_eval_check_trials(x, o, state);
    lab_eval_check_measurement(x, o, state);
    lab_eval_check_stats(x, state);
    o->n_added = x->n_comparators;
    o->is_other = x->n_keys > 0 || x->n_ruler > 0 || x->post_rope;
    o->without_text = x->n_ruler > 0;

    for (size_t i = 0; i < x->n_lengths; i++)
        longest = x->lengths[i] > longest ? x->lengths[i] : longest;
    if (o->window == 0 && x->n_keys > 0)
        o->window = longest > 0 ? longest : DEFAULT_RETRIEVAL_WINDOW;
    if (o->window == 0 && x->n_ruler > 0)
        o->window = longest > 0 ? longest : DEFAULT_RULER_WINDOW;
    if (o->n_tokens == 0 && x->post_rope)
        o->n_tokens = DEFAULT_TOKENS;
    if (x->n_keys > 0 || x->n_ruler > 0)
        lab_eval_set_lengths(x, o, x->n_keys > 0 ? 4 : 1);
}

/* ---- rows ---- */

static int lab_eval_load_stats(const struct engine *en, const char *path, struct stats **ret_stats,
                               struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    int r = stats_load(path, &s, e);

    if (r < 0)
        return r;
    if (memcmp(stats_get_options(s)->model_digest, engine_info(en)->model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "%s was calibrated on another model than %s", path, engine_info(en)->name);

    *ret_stats = take_ptr(s);
    return 0;
}

static int lab_eval_open(struct engine *en, const struct eval_options *o, const struct subject_options *so,
                         struct subject_list *l, struct errmsg *e)
{
    const struct lab_eval *x = lab_eval_of(o);
    _cleanup_(stats_freep) struct stats *stats = NULL;
    _cleanup_(stats_freep) struct stats *rotated = NULL;
    int r = 0;

    for (size_t i = 0; r == 0 && i < x->n_comparators; i++) {
        const struct comparator *c = x->comparators[i];

        if (c->calibrated && x->stats && !stats)
            r = lab_eval_load_stats(en, x->stats, &stats, e);
        if (r == 0 && c->calibrated && c->post_rope && stats && !rotated)
            r = stats_rotated(stats, &rotated, e);
        if (r == 0)
            r = comparator_subject_new(en, c, stats, rotated, so, &l->items[l->n], e);
        l->n += r == 0;
        l->n_blocks += c->block_tokens > 1;
    }

    return r;
}

/* ---- measurements ---- */

static int lab_eval_run(struct engine *en, const struct eval_options *o, const struct document *texts)
{
    const struct lab_eval *x = lab_eval_of(o);

    if (x->n_keys > 0)
        return eval_retrieval(en, o, texts);
    return x->n_ruler > 0 ? eval_ruler(en, o) : eval_post_rope(en, o, texts);
}

static const struct argp lab_eval_argp = {.options = options, .parser = lab_eval_parse};
static const struct eval_extension lab_eval_extension = {
    .arguments = &lab_eval_argp,
    .doc = doc,
    .rows = "a --table or a --comparator",
    .check = lab_eval_check,
    .open = lab_eval_open,
    .run = lab_eval_run,
};

static int lab_eval_main(int argc, char **argv)
{
    struct lab_eval x = {.n_keys = 0};

    return eval_main(&lab_eval_extension, &x, argc, argv);
}

const struct command lab_eval = {
    .name = "eval",
    .summary = "compare tables and other formats with the exact model",
    .run = lab_eval_main,
};
