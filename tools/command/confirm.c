/* Questions to an operator; see confirm.h. */
#include "tools/command/confirm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "tools/command/command.h"

bool confirm(bool yes, const char *fmt, ...)
{
    char answer[16] = "";
    va_list ap;

    va_start(ap, fmt);
    (void) vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void) fputc('\n', stderr);
    if (yes)
        return true;
    if (!isatty(STDIN_FILENO)) {
        (void) command_fail("there is no terminal to ask on; give --yes if this is what you want");
        return false;
    }
    (void) fputs("Go on? [y/N] ", stderr);
    if (fgets(answer, sizeof(answer), stdin)) {
        answer[strcspn(answer, "\n")] = '\0';
        if (strcasecmp(answer, "y") == 0 || strcasecmp(answer, "yes") == 0)
            return true;
    }
    (void) command_fail("nothing was changed");
    return false;
}
