/*
 * Writing HTML and SVG: text, numbers and tables. Text from files must go through html_text(); all other text
 * is literals of this program. The output is also well-formed XML, so that any XML parser can check a page.
 *
 * Errors of the stream are not reported: the caller checks ferror() once, at the end.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* @text as element content or attribute value in quotes: markup escaped, bytes that are not UTF-8 and
 * characters that XML does not allow replaced by U+FFFD. */
void html_text(FILE *f, const char *text);

/* html_text() of at most @max_bytes; the number of omitted bytes is written after it. */
void html_text_cut(FILE *f, const char *text, size_t max_bytes);

/* A number with four significant digits; an en dash if it is not finite. */
void html_number(FILE *f, double x);

/* One column of a table of JSON rows: the key of its cells, and the heading. */
struct html_column {
    const char *key, *title;
};

/* Most rows of a table on a page; larger tables are in the JSON only. */
#define HTML_ROWS_MAX 4096

/**
 * html_table() - rows of a JSON document as a table
 * @path:    path of the rows in the document: the data-rows attribute, which tests compare by
 * @caption: title of the table
 * @rows:    array of objects; strings, integers, reals, null, and arrays of numbers (shown up to 16 values)
 * @columns: ends with a NULL key
 */
void html_table(FILE *f, const char *path, const char *caption, const json_t *rows,
                const struct html_column *columns);

/* A page up to its title, which the caller writes; then up to the contents of its body. */
void html_begin(FILE *f);
void html_begin_body(FILE *f);

/* The style sheet of every page, without the style element. Loads nothing. */
void html_style(FILE *f);
