/* Tables and JSON; see report.h. */
#include "tools/command/report.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "base/cleanup.h"
#include "tools/command/command.h"
#include "tools/command/terminal.h"

struct report {
    size_t n_columns, n_cells, room;
    bool *right;  /* [n_columns] */
    char **cells; /* [n_cells] row by row, the header first */
};

struct report *report_free(struct report *r)
{
    if (!r)
        return NULL;

    for (size_t i = 0; i < r->n_cells; i++)
        free(r->cells[i]);
    free(r->cells);
    free(r->right);
    free(r);
    return NULL;
}

static void report_make_room(struct report *r, size_t n)
{
    if (r->room - r->n_cells >= n)
        return;

    r->room = (r->room + n) * 2;
    r->cells = command_allocated(reallocarray(r->cells, r->room, sizeof(*r->cells)));
}

/* Cuts @line at tabs into exactly one row. */
static void report_add_row(struct report *r, const char *line)
{
    report_make_room(r, r->n_columns);
    for (size_t i = 0; i < r->n_columns; i++) {
        size_t n = i + 1 < r->n_columns ? strcspn(line, "\t") : strlen(line);

        r->cells[r->n_cells++] = command_allocated(strndup(line, n));
        line += n + (line[n] == '\t');
    }
}

/* "<name\t>bpd" -> right = {false, true}, header row "name\tbpd" */
static void report_set_columns(struct report *r, const char *columns)
{
    _cleanup_(freep) char *header = command_allocated(strdup(columns));
    char *to = header;

    r->n_columns = 1;
    for (const char *p = columns; *p; p++)
        r->n_columns += *p == '\t';
    r->right = command_allocated(calloc(r->n_columns, sizeof(*r->right)));
    for (size_t i = 0; i < r->n_columns; i++) {
        r->right[i] = *columns++ == '>';
        while (*columns && *columns != '\t')
            *to++ = *columns++;
        if (*columns)
            *to++ = *columns++;
    }

    *to = '\0';
    report_add_row(r, header);
}

struct report *report_new(const char *columns)
{
    struct report *r = command_allocated(calloc(1, sizeof(*r)));

    report_set_columns(r, columns);
    return r;
}

void report_row(struct report *r, const char *fmt, ...)
{
    _cleanup_(freep) char *line = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&line, fmt, ap) < 0)
        line = NULL;
    va_end(ap);
    report_add_row(r, command_allocated(line));
}

/* Columns on a terminal; names may be UTF-8. */
static int report_width_of(const char *text)
{
    wchar_t wide[256];
    size_t n = mbstowcs(wide, text, 256);
    int width = n >= 256 ? -1 : wcswidth(wide, n); /* also (size_t) -1: no UTF-8 */

    return width >= 0 ? width : (int) strlen(text);
}

/* Prints a cell in @width columns; text that is wider is cut and ends in "...". */
static void report_print_cell(FILE *f, const char *text, int width, bool right, bool last)
{
    int pad = width - report_width_of(text), n = (int) strlen(text);

    if (pad < 0 && width > 3) {
        for (n = width - 3; n > 0 && ((unsigned char) text[n] & 0xc0) == 0x80;)
            n--; /* not in the middle of a character */
        fprintf(f, "%.*s...", n, text);
        pad = 0;
    } else {
        pad = pad > 0 ? pad : 0;
        fprintf(f, "%*s%s", right ? pad : 0, "", text);
    }

    if (!last)
        fprintf(f, "%*s  ", right ? 0 : pad, "");
}

/* The first column and those from @from to before @end, of all rows. */
static void report_print_part(const struct report *r, FILE *f, const int *widths, size_t from, size_t end)
{
    for (size_t row = 0; row < r->n_cells; row += r->n_columns) {
        report_print_cell(f, r->cells[row], widths[0], r->right[0], from == end);
        for (size_t i = from; i < end; i++)
            report_print_cell(f, r->cells[row + i], widths[i], r->right[i], i + 1 == end);
        fputc('\n', f);
    }
}

/* The end of the columns that fit beside the first one, at least one. */
static size_t report_part_end(const struct report *r, const int *widths, size_t from, int room)
{
    size_t end = from;
    int used = widths[0];

    while (end < r->n_columns && (end == from || used + 2 + widths[end] <= room))
        used += 2 + widths[end++];
    return end;
}

void report_print_width(const struct report *r, FILE *f, unsigned width)
{
    int room = width > 0 ? (int) width : INT_MAX;
    _cleanup_(freep) int *widths = command_allocated(calloc(r->n_columns, sizeof(*widths)));

    for (size_t i = 0; i < r->n_cells; i++) {
        int *column = &widths[i % r->n_columns], w = report_width_of(r->cells[i]);

        *column = w > *column ? w : *column;
    }

    widths[0] = widths[0] < room / 2 || r->n_columns == 1 ? widths[0] : room / 2;
    for (size_t i = 1; i < r->n_columns; i++)
        widths[i] = widths[i] <= room - widths[0] - 2 ? widths[i] : room - widths[0] - 2;

    for (size_t from = 1, end; from <= r->n_columns; from = end) {
        end = report_part_end(r, widths, from, room);
        if (from > 1)
            fputc('\n', f);
        report_print_part(r, f, widths, from, end);
        if (end >= r->n_columns)
            break;
    }
}

void report_print(const struct report *r, FILE *f)
{
    report_print_width(r, f, terminal_width(f));
}

json_t *report_json_real(double x)
{
    return isnan(x) ? json_null() : json_real(x);
}

int report_json(json_t *json)
{
    int r;

    if (!json)
        return command_fail("cannot make the JSON document: out of memory, or a number is not finite");

    r = json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(json);
    if (r < 0 && ferror(stdout)) /* the exit prints the sentence */
        return COMMAND_FAILED;
    if (r < 0)
        return command_fail("cannot make the JSON document: out of memory");

    putchar('\n');
    return COMMAND_OK;
}
