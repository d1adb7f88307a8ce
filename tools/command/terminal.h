/*
 * The width of a terminal, and sentences wrapped at it: a terminal itself breaks lines inside words. Used for
 * everything that is printed for people; files and pipes get each sentence as one line.
 */
#pragma once

#include <stdio.h>

/* Columns of the terminal that @f writes to; 0: no terminal. */
unsigned terminal_width(FILE *f);

/* Prints text whose lines are wrapped at blanks; the rows after the first one are indented by @indent. */
__attribute__((format(printf, 3, 4))) void terminal_print(FILE *f, unsigned indent, const char *fmt, ...);

/* The same for @width columns; 0: no limit. */
void terminal_wrap(FILE *f, unsigned width, unsigned indent, const char *text);
