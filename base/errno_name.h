/*
 * Names of error numbers, such as "ENOENT". Used for labels of metrics. strerrorname_np() has them too, but
 * only since glibc 2.32, and the programs of the wheel run with 2.28.
 */
#pragma once

/* Return: NULL if no error has this number. */
const char *errno_name(int err);
