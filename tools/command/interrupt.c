/* See interrupt.h. */
#include "tools/command/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t seen; /* signals have no other place to leave a note */

static void interrupt_note(int number)
{
    static const char text[] = "\nkvcobra: finishing the window at hand; once more stops at once\n";

    (void) number;
    seen = 1;
    (void) !write(STDERR_FILENO, text, sizeof(text) - 1);
}

void interrupt_watch(void)
{
    /* SA_RESETHAND: the second one is not ours */
    struct sigaction action = {.sa_handler = interrupt_note, .sa_flags = (int) (SA_RESETHAND | SA_RESTART)};

    (void) sigemptyset(&action.sa_mask);
    (void) sigaction(SIGINT, &action, NULL);
    (void) sigaction(SIGTERM, &action, NULL);
}

bool interrupt_seen(void)
{
    return seen != 0;
}
