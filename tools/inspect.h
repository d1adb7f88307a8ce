/* What `kvcobra inspect` can look at, one file each; cmd_inspect.c tells the files apart. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Each prints to stdout, as JSON with @json. @path is for sentences. Return: an exit code of command.h. */
int inspect_table(const char *path, const void *bytes, size_t n_bytes, bool json);
int inspect_stats(const char *path, bool json);
