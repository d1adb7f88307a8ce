/* See interrupt.h. */
#include "tools/command/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t seen; /* global, since a signal handler has no argument for it */

static void interrupt_note(int number)
{
    static const char text[] =
        "\nkvcobra: stopping after the current window; interrupt again to stop at once\n";

    (void) number;
    seen = 1;
    (void) !write(STDERR_FILENO, text, sizeof(text) - 1);
}

void interrupt_watch(void)
{
    /* SA_RESETHAND: the second signal ends the process */
    struct sigaction action = {.sa_handler = interrupt_note, .sa_flags = (int) (SA_RESETHAND | SA_RESTART)};

    (void) sigemptyset(&action.sa_mask);
    (void) sigaction(SIGINT, &action, NULL);
    (void) sigaction(SIGTERM, &action, NULL);
}

bool interrupt_seen(void)
{
    return seen != 0;
}
