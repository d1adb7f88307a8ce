/* See entry.h. */
#include "base/entry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* open() returns the lowest free number: those below @fd are open already. */
static void entry_open_standard(int fd, int flags)
{
    if (fcntl(fd, F_GETFD) >= 0 || open("/dev/null", flags) == fd)
        return;

    (void) dprintf(STDERR_FILENO, "%s: descriptor %d is closed, and /dev/null cannot be opened for it: %s\n",
                   program_invocation_short_name, fd, strerror(errno));
    _exit(EXIT_FAILURE);
}

/* Only calls that are safe in a signal handler. */
static void entry_on_cpu_limit(int signal_number)
{
    static const char sentence[] =
        ": the limit of processor time (RLIMIT_CPU) is reached: raise it, for example with ulimit -t\n";
    const char *name = program_invocation_short_name;

    (void) !write(STDERR_FILENO, name, strlen(name));
    (void) !write(STDERR_FILENO, sentence, sizeof(sentence) - 1);
    (void) signal(signal_number, SIG_DFL);
    (void) raise(signal_number);
}

/* "rmargin=79,opt-doc-col=29": columns have to lie before the right margin, which is 79 by default. */
static bool entry_help_format_is_usable(const char *format)
{
    const char *given = strstr(format, "rmargin=");
    unsigned long margin = given ? strtoul(given + strlen("rmargin="), NULL, 10) : 79;

    if (margin < ENTRY_HELP_MARGIN_MIN || margin > ENTRY_HELP_MARGIN_MAX)
        return false;
    for (const char *p = strchr(format, '='); p; p = strchr(p + 1, '=')) {
        bool is_margin = given && p == strchr(given, '=');

        if (!is_margin && strtoul(p + 1, NULL, 10) > margin - ENTRY_HELP_ROOM)
            return false;
    }
    return true;
}

static void entry_mend_help_format(void)
{
    const char *format = getenv("ARGP_HELP_FMT");

    if (format && !entry_help_format_is_usable(format))
        (void) unsetenv("ARGP_HELP_FMT");
}

static void entry_check_output(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;

    fprintf(stderr, "%s: cannot write to standard output: %s\n", program_invocation_short_name,
            errno ? strerror(errno) : "the output is incomplete");
    _exit(EXIT_FAILURE); /* exit() was called already */
}

void entry_prepare(enum entry_pipes pipes)
{
    entry_open_standard(STDIN_FILENO, O_WRONLY);
    entry_open_standard(STDOUT_FILENO, O_RDONLY);
    entry_open_standard(STDERR_FILENO, O_WRONLY);

    entry_mend_help_format();
    (void) signal(SIGXFSZ, SIG_IGN);
    (void) signal(SIGXCPU, entry_on_cpu_limit);
    if (pipes == ENTRY_PIPES_FAIL)
        (void) signal(SIGPIPE, SIG_IGN);
    (void) atexit(entry_check_output);
}
