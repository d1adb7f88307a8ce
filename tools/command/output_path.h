/* Checks of an output path before a command begins its work, which may take hours. */
#pragma once

#include <stddef.h>

struct errmsg;

/**
 * output_check() - check that @output can be written and is none of the files that the command reads
 * @inputs: [n_inputs]; entries may be NULL or paths that do not exist
 *
 * `solve m.stats -o m.stats` would destroy the result of hours of calibration. Links to one file count as
 * that file. Return: 0; -EINVAL; errors of atomic_file_check(); each with a sentence.
 */
int output_check(const char *output, const char *const *inputs, size_t n_inputs, struct errmsg *e);

/* The same for an output that stream_file_write() writes, which may be standard output. */
int output_check_text(const char *output, const char *const *inputs, size_t n_inputs, struct errmsg *e);
