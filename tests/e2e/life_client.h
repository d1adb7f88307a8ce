/* The clients of one life of a daemon (life_fixture.h). Each function is for a child process of its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct table;

enum { LIFE_TABLES = 2, LIFE_KEYS = 12, LIFE_HELD = 3 };

/* Shared by the test and its children. */
struct life_state {
    bool committed[LIFE_TABLES][LIFE_KEYS]; /* the reply to COMMIT was 0 */
    uint32_t active;                        /* the table that was activated last */
    uint64_t held_pages, sessions;          /* read by life_read_status() */
};

extern struct table *life_tables[LIFE_TABLES];
extern struct life_state *life_state; /* mapped shared */

/*
 * Return: 0; a negative errno that the daemon answered; -ECONNRESET: it closed the connection. A broken
 * promise is printed and ends the process with status LIFE_BROKEN.
 */
enum { LIFE_BROKEN = 2 };

int life_activate(uint32_t table);

/*
 * A session that checks all committed pages of the active table, publishes @n keys from @first and says BYE.
 */
int life_visit(unsigned first, unsigned n);

/* Reads the number of held pages and of sessions into life_state. */
int life_read_status(void);

/* Publishes and holds LIFE_HELD pages of the active table. */
int life_hold(void);
/*
 * In the same process, later: compares the bytes of all held pages; resumes the session after a restart and
 * releases one page. *ret_resumed: the daemon still had the session.
 */
void life_check_held(void);
int life_resume(bool *ret_resumed);
