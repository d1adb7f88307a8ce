/*
 * Writing HTML and SVG: text, numbers and tables. Whatever came from a file goes through html_text(); the
 * rest of a page is literals of ours. What is written is well-formed XML too, so that a page can be checked
 * by any XML parser.
 *
 * Writing to a stream does not report errors one by one: the caller looks at ferror() once, at the end.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* @text as element content or attribute value in quotes: markup escaped, bytes that are not UTF-8 and
 * characters that XML does not allow replaced by U+FFFD. */
void html_text(FILE *f, const char *text);

/* html_text() of at most @max_bytes; what is left out is counted in words. */
void html_text_cut(FILE *f, const char *text, size_t max_bytes);

/* A number as pages show it: four significant digits; an en dash if it is not finite. */
void html_number(FILE *f, double x);

/* One column of a table of JSON rows: the key that its cells stand under, and the heading. */
struct html_column {
    const char *key, *title;
};

/* Rows that a page shows of one table; more are in the JSON only. */
#define HTML_ROWS_MAX 4096

/**
 * html_table() - rows of a JSON document as a table
 * @path:    where the rows stand in the document: the data-rows attribute, for whoever compares
 * @caption: says what it is
 * @rows:    array of objects; strings, integers, reals, null, and arrays of numbers (shown up to 16 values)
 * @columns: ends with a NULL key
 */
void html_table(FILE *f, const char *path, const char *caption, const json_t *rows,
                const struct html_column *columns);

/* The style sheet of every page, without the style element. Loads nothing. */
void html_style(FILE *f);
