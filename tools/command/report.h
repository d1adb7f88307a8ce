/*
 * Results on stdout: aligned tables for people, JSON documents for programs. Used by every command that
 * prints more than a line.
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
 * @columns: "<name\t>bpd\t>bytes": a tab between columns; '<' aligns cells left, '>' right
 *
 * Without memory for a table, these functions end the program with a sentence.
 */
struct report *report_new(const char *columns);
struct report *report_free(struct report *r);
static inline void report_freep(struct report **r)
{
    *r = report_free(*r);
}

/* Adds a row: printf, with tabs between cells. Missing cells are empty; the last column takes the rest. */
__attribute__((format(printf, 2, 3))) void report_row(struct report *r, const char *fmt, ...);

/* Prints header and rows. On a terminal, columns that do not fit beside the others follow below in a table of
 * their own, which begins with the first column again. */
void report_print(const struct report *r, FILE *f);

/* The same for @width columns; 0: no limit. */
void report_print_width(const struct report *r, FILE *f, unsigned width);

/* ---- JSON ---- */

/* Prints @json and drops the reference. NULL (json_pack() ran out of memory, or a number was not finite) is a
 * failure with a sentence. Return: an exit code of command.h. */
int report_json(json_t *json);

/* A number, or null for NaN, which JSON does not have. */
json_t *report_json_real(double x);
