/*
 * How results are shown: aligned tables and amounts for people, JSON for programs.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- tables ---- */

struct report;

/**
 * report_new() - a table with these columns
 * @columns: "<name\t>bpd\t>bytes": a tab between columns, '<' or '>' says to which side the cells go
 *
 * Return: the table, or NULL without memory. Every function below takes NULL, report_print() then fails with
 * -ENOMEM: a command checks once, at the end.
 */
struct report *report_new(const char *columns);
struct report *report_free(struct report *r);
static inline void report_freep(struct report **r)
{
    *r = report_free(*r);
}

/* One row: printf, cells separated by tabs; missing cells stay empty, the last column takes what is left. */
__attribute__((format(printf, 2, 3))) void report_row(struct report *r, const char *fmt, ...);

/* Prints header and rows. Return: 0; -ENOMEM if this or any call before ran out of memory. */
int report_print(struct report *r, FILE *f);

/* ---- JSON ---- */

/* A JSON string of bytes that ought to be UTF-8: what is not becomes U+FFFD. NULL without memory. */
json_t *utf8_json(const char *text, size_t bytes);

/* Prints @json and drops the reference. NULL (json_pack() ran out of memory, or a number was not finite) is a
 * failure with a sentence. Return: an exit code of command.h. */
int report_json(json_t *json);
