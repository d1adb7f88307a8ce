/* Where a command is told to write, looked at before it works. */
#pragma once

#include <stddef.h>

struct errmsg;

/**
 * output_check() - whether @output can be written, and is none of the files that the command reads
 * @inputs: [n_inputs]; NULLs in it were not given, names that do not exist are told elsewhere
 *
 * A slip like `solve m.stats -o m.stats` would otherwise end hours of calibrating. Links to one file count as
 * that file. Return: 0; -EINVAL; what atomic_file_check() returns; each with a sentence.
 */
int output_check(const char *output, const char *const *inputs, size_t n_inputs, struct errmsg *e);
