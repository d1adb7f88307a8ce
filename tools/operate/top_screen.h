/*
 * The terminal that `kvcobra top` draws on: the alternate screen, no cursor, keys without Enter.
 * screen_leave() restores its state, also after Ctrl-C, Ctrl-Z, SIGTERM and SIGHUP.
 *
 * One terminal per process, as standard output is one. It does not change the lines that top_view.h makes.
 */
#pragma once

#include <stdbool.h>

/* Whether standard input and output are a terminal, and TERM is neither empty nor "dumb". */
bool screen_is_possible(void);

/* Return: 0; negative errno. */
int screen_enter(void);
void screen_leave(void); /* may be called twice */

void screen_size(unsigned *ret_width, unsigned *ret_height);

/* Draws the lines of @text from the upper left corner over the previous lines, so that nothing flickers.
 * False: the terminal was closed. */
bool screen_draw(const char *text);

enum screen_event {
    SCREEN_TIMEOUT = 0,
    SCREEN_RESIZED = 1, /* resized, or continued after Ctrl-Z: draw again */
    SCREEN_QUIT = 2,    /* q, Ctrl-C, a signal, or the terminal was closed */
    SCREEN_KEY = 3,     /* another key */
};

/* Waits up to @seconds for a key or a signal. @ret_key: of SCREEN_KEY. */
enum screen_event screen_wait(double seconds, char *ret_key);
