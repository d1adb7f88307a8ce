/*
 * A terminal that `kvcobra top` draws on: the alternate screen, no cursor, keys without Enter; given back as
 * it was, also on Ctrl-C, Ctrl-Z, SIGTERM and SIGHUP. One at a time: signals have no context.
 */
#pragma once

#include <stdbool.h>

/* Whether standard output and input are a terminal that can be drawn on: TERM is neither empty nor "dumb". */
bool screen_is_possible(void);

/* Return: 0; negative errno. */
int screen_enter(void);
void screen_leave(void); /* twice is fine */

void screen_size(unsigned *ret_width, unsigned *ret_height);

/* Draws @text, lines from the upper left corner, over what is there: nothing flickers. False: the terminal is
 * gone. */
bool screen_draw(const char *text);

enum screen_event {
    SCREEN_TIMEOUT = 0, /* the time is over */
    SCREEN_RESIZED = 1, /* or came back from Ctrl-Z: draw again */
    SCREEN_QUIT = 2,    /* q, Ctrl-C, a signal, or the terminal went away */
};

enum screen_event screen_wait(double seconds);
