/* What `kvcobra solve` reads: statistics, or moments with the statistics of a metric; and a table whose
 * levels are kept. */
#pragma once

struct errmsg;
struct solve_arguments;
struct stats;
struct table;

struct solve_input {
    struct stats *stats;  /* made of moments if the file holds those */
    struct table *levels; /* NULL: none named */
};

/**
 * solve_input_load_statistics() - a statistics file, or statistics made of a file of moments
 * @metric_from: for moments: statistics of the same model with their metric; or NULL
 *
 * Return: 0; -EINVAL, -EBADMSG, -ENOENT … with a sentence that names the file.
 */
int solve_input_load_statistics(const char *path, const char *metric_from, struct stats **ret_stats,
                                struct errmsg *e);

/**
 * solve_input_load() - the files that the arguments name
 *
 * Return: 0; -EINVAL: files or options that do not go together; -EBADMSG, -ENOENT …; a sentence in @e.
 */
int solve_input_load(const struct solve_arguments *a, struct solve_input *ret, struct errmsg *e);

/* Leaves an empty input behind: right as a cleanup. */
void solve_input_deinit(struct solve_input *in);
