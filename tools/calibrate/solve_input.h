/*
 * The input files of `kvcobra solve` and `kvcobra inspect`: statistics, or moments with the statistics of a
 * metric; and a table whose quantiser levels are reused.
 */
#pragma once

struct errmsg;
struct solve_arguments;
struct stats;
struct table;

struct solve_input {
    struct stats *stats;  /* derived from moments if the file holds moments */
    struct table *levels; /* NULL: not given */
};

/**
 * solve_input_load_statistics() - load statistics, or derive them from a file of moments
 * @metric_from: for moments: statistics of the same model with their metric; or NULL
 *
 * Return: 0; -EINVAL, -EBADMSG, -ENOENT … with a sentence that names the file.
 */
int solve_input_load_statistics(const char *path, const char *metric_from, struct stats **ret_stats,
                                struct errmsg *e);

/**
 * solve_input_load() - load the files that the arguments name
 *
 * Return: 0; -EINVAL: files or options that exclude each other; -EBADMSG, -ENOENT …; a sentence in @e.
 */
int solve_input_load(const struct solve_arguments *a, struct solve_input *ret, struct errmsg *e);

/* Frees and zeroes. Usable with _cleanup_. */
void solve_input_deinit(struct solve_input *in);
