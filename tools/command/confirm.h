/* Asking before something happens that a daemon's users would notice. */
#pragma once

#include <stdbool.h>

/**
 * confirm() - say what will happen, go on if the operator agrees
 * @yes: --yes was given: the sentence is printed on stderr, nobody is asked
 *
 * The question goes to stderr, the answer comes from standard input. Without a terminal there, or for
 * anything but "y" or "yes", nothing is done.
 *
 * Return: whether to go on; if not, a sentence was printed.
 */
__attribute__((format(printf, 2, 3))) bool confirm(bool yes, const char *fmt, ...);
