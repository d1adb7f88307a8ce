/* See terminal.h. */
#include "tools/command/terminal.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/cleanup.h"

enum { WIDTH_LEAST = 20 }; /* a narrower terminal gets longer lines, which it breaks itself */

unsigned terminal_width(FILE *f)
{
    struct winsize w = {0};
    int fd = fileno(f);

    if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &w) < 0)
        return 0;
    return w.ws_col > WIDTH_LEAST ? w.ws_col : 0;
}

/* Columns of @n bytes of UTF-8, or of other bytes. */
static unsigned terminal_columns(const char *text, size_t n)
{
    unsigned columns = 0;
    mbstate_t state;

    memset(&state, 0, sizeof(state));
    for (size_t at = 0; at < n;) {
        wchar_t c;
        size_t k = mbrtowc(&c, text + at, n - at, &state);
        int width;

        if (k == (size_t) -1 || k == (size_t) -2 || k == 0)
            return columns + (unsigned) (n - at);
        width = wcwidth(c);
        columns += width > 0 ? (unsigned) width : 0;
        at += k;
    }
    return columns;
}

/* Blanks in a line are kept, except those at which a row ends. */
static void terminal_wrap_line(FILE *f, unsigned width, unsigned indent, const char *line, size_t n)
{
    bool has_word = false; /* in this row: a word alone is not moved to another one */
    unsigned at = 0;

    while (n > 0) {
        size_t blanks = strspn(line, " "), word;
        unsigned columns;

        blanks = blanks < n ? blanks : n;
        word = strcspn(line + blanks, " \n");
        word = word < n - blanks ? word : n - blanks;
        columns = terminal_columns(line + blanks, word);
        if (has_word && at + blanks + columns > width) {
            fprintf(f, "\n%*s", (int) indent, "");
            at = indent;
        } else {
            fprintf(f, "%*s", (int) blanks, "");
            at += (unsigned) blanks;
        }
        (void) fwrite(line + blanks, 1, word, f);
        at += columns;
        has_word = has_word || word > 0;
        line += blanks + word;
        n -= blanks + word;
    }
}

void terminal_wrap(FILE *f, unsigned width, unsigned indent, const char *text)
{
    if (width == 0) {
        (void) fputs(text, f);
        return;
    }

    while (*text) {
        size_t n = strcspn(text, "\n");

        terminal_wrap_line(f, width, indent, text, n);
        text += n;
        if (*text == '\n') {
            (void) fputc('\n', f);
            text++;
        }
    }
}

void terminal_print(FILE *f, unsigned indent, const char *fmt, ...)
{
    _cleanup_(freep) char *text = NULL;
    unsigned width = terminal_width(f);
    va_list ap;
    int n;

    va_start(ap, fmt);
    if (width == 0) {
        (void) vfprintf(f, fmt, ap);
        va_end(ap);
        return;
    }

    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        text = NULL;
        (void) fputs("out of memory\n", f);
        return;
    }
    terminal_wrap(f, width, indent, text);
}
