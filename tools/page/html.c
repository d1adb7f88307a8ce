/* Escaping text and writing tables; see html.h. */
#include "tools/page/html.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tools/command/utf8_json.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

enum {
    ARRAY_SHOWN = 16, /* numbers of an array in a cell: the levels of 4 bits */
    SHORT_ROWS = 32,  /* of a table that becomes a list of its cells on a narrow page */
};

/* One character of valid UTF-8. Return: its bytes. */
static size_t html_put_character(FILE *f, const char *p)
{
    unsigned char c = (unsigned char) *p;
    size_t n = 1 + (c >= 0xc0) + (c >= 0xe0) + (c >= 0xf0); /* by the lead byte */

    if (c == '<')
        fputs("&lt;", f);
    else if (c == '>')
        fputs("&gt;", f);
    else if (c == '&')
        fputs("&amp;", f);
    else if (c == '"')
        fputs("&quot;", f);
    else if (c == '\'')
        fputs("&#39;", f);
    else if (c == '\n' || c == '\t')
        putc(' ', f);
    else if (c < 0x20 || c == 0x7f || memcmp(p, "\xef\xbf\xbe", n) == 0 || memcmp(p, "\xef\xbf\xbf", n) == 0)
        fputs(REPLACEMENT, f); /* XML does not allow U+FFFE and U+FFFF */
    else
        (void) fwrite(p, 1, n, f);
    return n;
}

static void html_put_clean(FILE *f, const char *text, size_t bytes)
{
    json_t *clean = utf8_json(text, bytes);
    const char *p = json_string_value(clean);

    for (size_t at = 0; p && at < json_string_length(clean);)
        at += html_put_character(f, p + at);
    json_decref(clean);
}

void html_text(FILE *f, const char *text)
{
    html_put_clean(f, text, strlen(text));
}

void html_text_cut(FILE *f, const char *text, size_t max_bytes)
{
    size_t n = strlen(text), shown = n;

    if (n > max_bytes) {
        shown = max_bytes;
        while (shown > 0 && ((unsigned char) text[shown] & 0xc0) == 0x80) /* not inside a character */
            shown--;
    }

    html_put_clean(f, text, shown);
    if (shown < n)
        fprintf(f, "… (%zu more bytes)", n - shown);
}

void html_number(FILE *f, double x)
{
    if (isfinite(x))
        fprintf(f, "%.4g", x);
    else
        fputs("–", f);
}

/* ---- tables ---- */

static void html_put_value(FILE *f, const json_t *x)
{
    if (json_is_integer(x))
        fprintf(f, "%" JSON_INTEGER_FORMAT, json_integer_value(x));
    else if (json_is_string(x))
        html_text(f, json_string_value(x));
    else
        html_number(f, json_is_real(x) ? json_real_value(x) : (double) NAN);
}

static void html_put_array(FILE *f, const json_t *array)
{
    size_t n = json_array_size(array);

    for (size_t i = 0; i < n && n <= ARRAY_SHOWN; i++) {
        fputs(i > 0 ? " " : "", f);
        html_put_value(f, json_array_get(array, i));
    }

    if (n <= ARRAY_SHOWN)
        return;

    fprintf(f, "%zu values, ", n);
    html_put_value(f, json_array_get(array, 0));
    fputs(" to ", f);
    html_put_value(f, json_array_get(array, n - 1));
}

/* Whether a cell is aligned left, as its heading. */
static bool html_is_text(const json_t *x)
{
    return json_is_string(x) || json_is_array(x);
}

/* @labels: each cell has its heading, which is shown where the table has no room for columns. */
static void html_put_row(FILE *f, const json_t *row, const struct html_column *columns, bool labels)
{
    fputs("<tr>", f);
    for (const struct html_column *c = columns; c->key; c++) {
        const json_t *x = json_object_get(row, c->key);

        fputs(html_is_text(x) ? "<td class=\"text\"" : "<td", f);
        if (labels)
            fprintf(f, " data-label=\"%s\"", c->title);
        putc('>', f);
        if (json_is_array(x))
            html_put_array(f, x);
        else
            html_put_value(f, x);
        fputs("</td>", f);
    }

    fputs("</tr>\n", f);
}

void html_table(FILE *f, const char *path, const char *caption, const json_t *rows,
                const struct html_column *columns)
{
    size_t n = json_array_size(rows);
    bool is_short = n <= SHORT_ROWS;

    if (n > HTML_ROWS_MAX) {
        fprintf(f,
                "<p class=\"note\">%zu rows are too many for a page; <code>kvcobra inspect --json</code> has "
                "them at <code>%s</code>.</p>\n",
                n, path);
        return;
    }

    fprintf(f, "<div class=\"%s\" tabindex=\"0\"><table class=\"data\" data-rows=\"%s\"><caption>",
            is_short ? "scroll short" : "scroll", path);
    html_text(f, caption);
    fputs("</caption><thead><tr>", f);
    for (const struct html_column *c = columns; c->key; c++)
        fprintf(f, "<th scope=\"col\"%s data-key=\"%s\">%s</th>",
                html_is_text(json_object_get(json_array_get(rows, 0), c->key)) ? " class=\"text\"" : "",
                c->key, c->title);
    fputs("</tr></thead><tbody>\n", f);
    for (size_t i = 0; i < n; i++)
        html_put_row(f, json_array_get(rows, i), columns, is_short);
    fputs("</tbody></table></div>\n", f);
}
